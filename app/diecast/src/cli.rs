//! Every flag, with the help that a person reads first.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use diecast_core_plan::{CALL_SITES_DEFAULT, CALL_SITES_MAX, Mode, Scale, Tsc};
use diecast_core_vtime::Tdf;
use diecast_host_run::HitsFrom;

/// Run a whole distributed service on one machine, in dilated time, and get the numbers of the real deployment.
///
/// Under a time dilation factor (TDF) of 10 every node believes that one second passes while ten do, gets a tenth
/// of a core and talks over links with a tenth of the bits: in its own time it has a whole machine.
#[derive(Parser)]
#[command(
    name = "diecast",
    version,
    after_help = "Exit status: 0 success, 1 the experiment failed, 2 a fault in the \
command or catalog, 3 this host can't, 4 success but the numbers are not trustworthy."
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Sub,
}

#[derive(Subcommand)]
pub enum Sub {
    /// Run one command in a time frame of its own
    Frame(FrameArgs),
    /// Run a catalog once, in one mode
    Run(RunArgs),
    /// Run a catalog as baseline, diecast and naive, then compare
    Validate(ValidateArgs),
    /// Compare the results of runs, side by side
    Compare(CompareArgs),
    /// Check a catalog's text; touches nothing
    Check(CheckArgs),
    /// Show what would run where, with which shares and links; starts nothing
    Plan(PlanArgs),
    /// Say what this host can and can't do, and what follows
    Doctor(DoctorArgs),
    /// Make parts of catalogs
    Catalog {
        #[command(subcommand)]
        command: CatalogSub,
    },
    /// Remove what killed runs left behind
    Clean,
    /// List the labs of this host
    Ps(DoctorArgs),
    /// Change the network of a running lab: set, cut, heal, flap, partition
    Link(LinkArgs),
    /// Show or change the clock of a node in a running lab: offset, step, drift
    Clock(ClockArgs),
    /// Stop a running lab's world: no virtual time passes
    Pause(PaceArgs),
    /// Let a paused lab go on
    Resume(PaceArgs),
    /// Give a running lab another TDF: every wait, timer and packet still comes at its virtual instant
    Retime(RetimeArgs),
    /// Write what a NIC or a pipe of a running lab carries to a pcapng file, with virtual timestamps
    Capture(CaptureArgs),
    /// Have the network of a run again that was recorded with --record-arrivals, and compare
    Replay(ReplayArgs),
}

#[derive(Args)]
#[command(after_help = "Examples:\n  diecast frame --tdf 10 -- sleep 1          takes ten seconds\n  \
diecast frame --tdf 10 -- python3 server.py  the server's clocks run at a tenth, its CPU too\n  \
diecast frame --tdf 2 --speed 0.5 -- make    a machine of half the speed, twice as slow")]
pub struct FrameArgs {
    /// Time dilation factor: real seconds per virtual second, from 1/100 to 1000 (10, 0.5, 3/2)
    #[arg(long)]
    pub tdf: Tdf,
    /// Speed of each virtual core, 1.0 being a core of this host [default: the smaller of 1 and the TDF]
    #[arg(long, value_parser = speed)]
    pub speed: Option<u32>,
    /// Virtual cores; with fewer than the host has, the program runs on as many of them [default: as many as this
    /// process may use]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub cores: Option<u32>,
    #[command(flatten)]
    pub meter: Meter,
    /// Print what the envelope counted to stderr at the end
    #[arg(long)]
    pub stats: bool,
    /// The command and its arguments, after --
    #[arg(last = true, required = true)]
    pub command: Vec<OsString>,
}

#[derive(Args)]
pub struct Factors {
    /// Time dilation factor; only mode diecast takes one [default: the scale factor]
    #[arg(long)]
    pub tdf: Option<Tdf>,
    /// Scale factor S: use 1/S of the host that the baseline would use [default: the TDF]
    #[arg(long)]
    pub scale: Option<Scale>,
    /// Multiply the speed of every node by this, but of those that generate load: what would the service do on faster or
    /// slower machines? A faster one needs a higher TDF
    #[arg(long, value_name = "FACTOR", value_parser = speed, default_value = "1")]
    pub speed: u32,
}

#[derive(Args)]
pub struct Catalog {
    /// The catalog, a YAML file that describes the original service
    pub catalog: PathBuf,
    /// Override a workload parameter (may be given several times)
    #[arg(short = 'p', value_name = "NAME=VALUE", value_parser = pair)]
    pub parameters: Vec<(String, String)>,
}

/// A catalog, how to run it and how finely to meter it: what a plan is made from.
#[derive(Args)]
pub struct Planned {
    #[command(flatten)]
    pub catalog: Catalog,
    /// How to run: baseline, native, diecast or naive
    #[arg(long, default_value = "diecast")]
    pub mode: Mode,
    #[command(flatten)]
    pub factors: Factors,
    #[command(flatten)]
    pub meter: Meter,
}

#[derive(Args)]
pub struct Meter {
    /// CPU time between two looks of the meter: smaller is finer and costs more. Threads that contend for locks sleep as seldom
    /// as with 500us, but for labs whose packets can't carry what their senders have used. [default: 100us for a single command, or
    /// 500us where it may take more than half of the host's CPU time; 500us in a lab, where packets carry what their
    /// senders have used, or 100us where this host's kernel can't tell]
    #[arg(long, value_parser = grain)]
    pub grain: Option<u64>,
    /// What the meter's looks come from: cores, a clock of each core (needs Linux 6.18 and root); threads, an event of each
    /// thread, which makes each switch to one dearer; or auto, the first of these that works here
    #[arg(long, default_value_t, value_name = "auto|cores|threads", env = "DIECAST_HITS")]
    pub hits: HitsFrom,
    /// What rdtsc tells programs in the frame: native, the processor's counter in real time; or trap, one in virtual time,
    /// at about a microsecond a reading. Clocks are virtual either way
    #[arg(long, default_value = "native", value_name = "native|trap")]
    pub tsc: Tsc,
    /// After how many calls that carry time a place in a program jumps to the blob instead of being trapped, which saves
    /// a signal a call; never for programs that look at their own code (needs Linux 6.11)
    #[arg(long, value_name = "N|never", default_value_t = CALL_SITES_DEFAULT, value_parser = call_sites)]
    pub call_sites: u32,
}

#[derive(Args)]
pub struct Emulator {
    /// Threads of the emulator: with more than one, all but the first hand packets to nodes. Each takes up to 0.8 of a core
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub emulator_threads: u8,
}

#[derive(Args)]
pub struct Probe {
    /// Keep the lab at its TDF through the warm-up. Else, from TDF 4 on, where this host has room and the warm-up is long
    /// enough, it runs at a quarter or half of it from 60 to 90 % of the warm-up, to see how much of its CPU time is cold code
    #[arg(long)]
    pub no_probe: bool,
}

#[derive(Args)]
#[command(after_help = "Example: diecast run examples/web-tier.yaml --mode diecast --tdf 10 -p rate=200/s")]
pub struct RunArgs {
    #[command(flatten)]
    pub planned: Planned,
    /// Directory for the results [default: out/NAME-MODE-TIME]
    #[arg(long)]
    pub out: Option<PathBuf>,
    /// Print the summary as JSON instead of a table
    #[arg(long)]
    pub json: bool,
    /// Write every frame that enters the network, and a hash of each that is delivered, to arrivals.bin in the results, for
    /// `diecast replay`
    #[arg(long)]
    pub record_arrivals: bool,
    #[command(flatten)]
    pub emulator: Emulator,
    #[command(flatten)]
    pub probe: Probe,
}

#[derive(Args)]
#[command(after_help = "Exit status: 0 every bar was met, 1 a figure missed its bar (FAIL; those of \
naive are there to miss and don't count) or a run failed, 2 a fault in the command or catalog, 3 this host can't, 4 no \
figure failed, but there is no verdict, too few samples for one, or a run that is not trustworthy.")]
pub struct ValidateArgs {
    #[command(flatten)]
    pub catalog: Catalog,
    #[command(flatten)]
    pub factors: Factors,
    /// Blocks: each runs baseline, diecast and naive afresh; a last baseline closes
    #[arg(long, default_value_t = 1)]
    pub blocks: u32,
    /// Leave naive out
    #[arg(long)]
    pub without_naive: bool,
    /// Repeat a run of a block, so many times at most, when others had this host's cores meanwhile; what it gave is kept
    #[arg(long, value_name = "TIMES", default_value_t = 0)]
    pub repeat: u32,
    #[command(flatten)]
    pub meter: Meter,
    #[command(flatten)]
    pub emulator: Emulator,
    #[command(flatten)]
    pub probe: Probe,
    /// Directory for the results [default: out/NAME-validate-TIME]
    #[arg(long)]
    pub out: Option<PathBuf>,
    /// Print the comparison as JSON instead of a table
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
#[command(after_help = "Exit status: 0 every bar was met, 1 a figure missed its bar (FAIL; those of \
naive are there to miss and don't count), 2 a fault in the command, 3 this host can't, 4 no \
figure failed, but there is no verdict, too few samples for one, or a run that is not trustworthy.")]
pub struct CompareArgs {
    /// Directories of runs; the first baseline is the reference
    #[arg(required = true)]
    pub directories: Vec<PathBuf>,
    /// Also write a self-contained page with plots
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct CheckArgs {
    #[command(flatten)]
    pub catalog: Catalog,
}

#[derive(Args)]
pub struct PlanArgs {
    #[command(flatten)]
    pub planned: Planned,
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
}

#[derive(Subcommand)]
pub enum CatalogSub {
    /// Measure this machine and print it as a machine type, with a score that a plan on another host turns into a speed
    Host(HostArgs),
}

#[derive(Args)]
pub struct HostArgs {
    /// Folder whose disk is measured, with 64 MiB in a file that is removed
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub folder: PathBuf,
    /// Print JSON instead of a section of a catalog
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct DoctorArgs {
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
#[command(after_help = "A LINK is FROM:TO, both ends of one link, or a node or group for its own links.\n\n\
Examples:\n  diecast link 3f2a set core:app-1 bandwidth=10Mbit/s loss=1%\n  \
diecast link 3f2a cut app-1                 from and to app-1, at once\n  \
diecast link 3f2a heal app-1 --in 5s        five virtual seconds from now\n  \
diecast link 3f2a flap core:db --down 200ms --up 1s --times 3\n  \
diecast link 3f2a partition app-1,app-2 db  three sides: these, db, and all others")]
pub struct LinkArgs {
    /// The lab's id from `diecast ps`, or how it begins
    pub lab: String,
    #[command(subcommand)]
    pub action: LinkAction,
    /// Virtual time after the start of the load [default: at once]
    #[arg(long, global = true, value_parser = span, value_name = "TIME", conflicts_with = "from_now")]
    pub at: Option<u64>,
    /// Virtual time from now [default: at once]
    #[arg(long = "in", global = true, value_parser = span, value_name = "TIME", id = "from_now")]
    pub from_now: Option<u64>,
    /// Only from FROM to TO, or away from the node
    #[arg(long, global = true)]
    pub one_way: bool,
    /// Print JSON
    #[arg(long, global = true)]
    pub json: bool,
}

#[derive(Subcommand)]
pub enum LinkAction {
    /// Give a link other parameters, in the words of a catalog; the others stay. Where a link comes to mark packets (ecn),
    /// connections that begin later ask for it
    Set {
        /// The link
        link: String,
        /// bandwidth=, delay=, loss=, jitter=, queue=, discipline=, framing=, duplicate=, corrupt=
        #[arg(required = true, value_name = "KEY=VALUE")]
        settings: Vec<String>,
    },
    /// Break links: what waits and what comes is dropped and counted
    Cut {
        /// The links
        #[arg(required = true, value_name = "LINK")]
        links: Vec<String>,
    },
    /// Mend links
    Heal {
        /// The links
        #[arg(required = true, value_name = "LINK")]
        links: Vec<String>,
    },
    /// Break and mend links, several times
    Flap {
        /// The links
        #[arg(required = true, value_name = "LINK")]
        links: Vec<String>,
        /// How long they are cut, virtual
        #[arg(long, value_parser = span, value_name = "TIME")]
        down: u64,
        /// How long they work in between, virtual
        #[arg(long, value_parser = span, value_name = "TIME")]
        up: u64,
        /// How often
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
        times: u32,
    },
    /// Let nodes reach only nodes of their own side; those that are not named are one side more
    Partition {
        /// A side: nodes or groups, separated by commas
        #[arg(required = true, value_name = "NODE,…")]
        sides: Vec<String>,
    },
    /// End the partition
    Join,
    /// Search paths anew, around what is cut
    Reroute,
}

#[derive(Args)]
#[command(
    after_help = "CLOCK_REALTIME jumps with an offset or a step; a drift is the machine's: all of its clocks count \
it, and\nits MONOTONIC never goes back. Programs on the node set the same clock with settimeofday and adjtimex.\n\n\
Examples:\n  diecast clock 3f2a                       how wrong the clock of each node is\n  \
diecast clock 3f2a app-1 --step=-2s      two seconds back\n  \
diecast clock 3f2a app --drift 50ppm     all nodes of a group"
)]
pub struct ClockArgs {
    /// The lab's id from `diecast ps`, or how it begins
    pub lab: String,
    /// A node or group [default: all nodes]
    pub node: Option<String>,
    /// Put CLOCK_REALTIME so far ahead of the lab's, or behind it
    #[arg(long, value_parser = offset, value_name = "[-]TIME", allow_hyphen_values = true, requires = "node")]
    pub offset: Option<i64>,
    /// Let CLOCK_REALTIME jump
    #[arg(long, value_parser = offset, value_name = "[-]TIME", allow_hyphen_values = true, requires = "node", conflicts_with = "offset")]
    pub step: Option<i64>,
    /// Let all clocks go so much too fast from now on, at most 100000ppm
    #[arg(long, value_parser = drift, value_name = "[-]PPM", allow_hyphen_values = true, requires = "node")]
    pub drift: Option<i64>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
#[command(
    after_help = "The lab stands still for some milliseconds, in which no virtual time passes. Then every wait and \
timer still ends at its\nvirtual instant, packets on their way still arrive at theirs, and each node's share of the \
host is speed/TDF anew.\nRefused before anything stops: a TDF at which the nodes would need more of a core than \
there is (exit 3), modes\nother than diecast (exit 2). A paused lab goes on at the new TDF once it is resumed. LIMITS.md \
says what TCP makes of it.\n\n\
Examples:\n  diecast retime 3f2a --tdf 20    half as fast as at TDF 10: more of the host for each virtual second\n  \
diecast retime 3f2a --tdf 1     real time, where the host can carry it"
)]
pub struct RetimeArgs {
    #[command(flatten)]
    pub pace: PaceArgs,
    /// Time dilation factor from now on: real seconds per virtual second, from 1/100 to 1000 (10, 0.5, 3/2)
    #[arg(long)]
    pub tdf: Tdf,
}

#[derive(Args)]
pub struct PaceArgs {
    /// The lab's id from `diecast ps`, or how it begins
    pub lab: String,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
#[command(after_help = "Ends with the lab, with Ctrl-C, or at a limit; the file is whole in each case.\n\n\
Example: diecast capture 3f2a app-1 core:db --out app.pcapng")]
pub struct CaptureArgs {
    /// The lab's id from `diecast ps`, or how it begins
    pub lab: String,
    /// A node or group: what its NIC sends and receives; FROM:TO: what the pipe between them sends
    #[arg(required = true, value_name = "NODE|FROM:TO")]
    pub places: Vec<String>,
    /// The file, pcapng
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// End after so many frames
    #[arg(long, value_name = "N")]
    pub frames: Option<u64>,
    /// End after so much virtual time, counted from the first frame
    #[arg(long = "for", value_parser = span, value_name = "TIME")]
    pub duration: Option<u64>,
}

#[derive(Args)]
pub struct ReplayArgs {
    /// Directory of the run
    pub directory: PathBuf,
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
}

/// A virtual span in ns, as a catalog writes it.
fn span(text: &str) -> Result<u64, String> {
    diecast_core_experiment::duration_ns(text)
}

fn offset(text: &str) -> Result<i64, String> {
    diecast_core_experiment::parse_offset(text)
}

fn drift(text: &str) -> Result<i64, String> {
    diecast_core_experiment::parse_drift(text)
}

/// A speed as millionths, from a decimal with at most six places.
fn speed(text: &str) -> Result<u32, String> {
    let wrong = || format!("'{text}' is no speed, expected a decimal from 0.000001 to 1000 such as 0.5");
    let t: f64 = text.parse().map_err(|_| wrong())?;
    let ppm = (t * 1e6).round();
    if (1.0..=1e9).contains(&ppm) { Ok(ppm as u32) } else { Err(wrong()) }
}

/// Calls after which a place jumps, 0 for never.
fn call_sites(text: &str) -> Result<u32, String> {
    match text.parse() {
        _ if text == "never" => Ok(0),
        Ok(n @ 1..=CALL_SITES_MAX) => Ok(n),
        _ => Err(format!("'{text}' is no number of calls, expected 1 to {CALL_SITES_MAX} or never")),
    }
}

/// A grain in ns, from `100us` or `0.5ms`.
fn grain(text: &str) -> Result<u64, String> {
    let wrong = || format!("'{text}' is no grain, expected 10us to 100ms (10ms in a lab), for example 100us");
    let (number, unit) = match (text.strip_suffix("us"), text.strip_suffix("ms")) {
        (Some(n), _) => (n, 1e3),
        (_, Some(n)) => (n, 1e6),
        _ => return Err(wrong()),
    };
    let ns = number.parse::<f64>().map_err(|_| wrong())? * unit;
    if (1e4..=1e8).contains(&ns) { Ok(ns as u64) } else { Err(wrong()) }
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(format!("'{text}' is no parameter, expected NAME=VALUE")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definition_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn grains_and_speeds() {
        assert_eq!(grain("100us"), Ok(100_000));
        assert_eq!(grain("0.5ms"), Ok(500_000));
        assert!(speed("0.0000004").is_err() && speed("1000.1").is_err() && speed("NaN").is_err());
        assert_eq!((speed("0.0000006"), speed("1000")), (Ok(1), Ok(1_000_000_000)));
        assert!(grain("9us").is_err() && grain("100").is_err() && grain("1s").is_err());
        assert_eq!(speed("0.15"), Ok(150_000));
        assert!(speed("0").is_err() && speed("-1").is_err() && speed("NaN").is_err());
    }
}
