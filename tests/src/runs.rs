//! Running one command in one world, bounded in time, with the arrival of each line of its output.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use diecast_quiet::Turn;

/// Longest real time of one run. Longer means that something hangs.
const LIMIT: Duration = Duration::from_secs(90);
/// Runs at one time: as many as keep a machine of two cores quiet enough. Most sleep.
const RUNS_MAX: usize = 4;

/// Where a guest runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum World {
    Native,
    /// In a frame of this TDF.
    Frame(&'static str),
    /// The same, where rdtsc is trapped too.
    Trapped(&'static str),
    /// The same, where places that call the kernel are trapped each time and never jump to the blob.
    Staying(&'static str),
}

impl World {
    /// Real time per virtual time.
    pub fn tdf(self) -> f64 {
        match self {
            World::Native => 1.0,
            World::Frame(t) | World::Trapped(t) | World::Staying(t) => t.parse().expect("a decimal TDF"),
        }
    }
}

/// What became of a run.
#[derive(Debug)]
pub struct Run {
    /// None: ended by a signal, which is in `signal`.
    pub status: Option<i32>,
    pub signal: Option<i32>,
    /// Lines of standard output with the real ns since the start at which they arrived.
    out: Vec<(u64, String)>,
    pub stderr: String,
    pub real: Duration,
    /// Most descriptors that the process had open at one time.
    pub descriptors_max: usize,
    /// Descriptors open at a quarter of the samples, and at the last one.
    pub descriptors: (usize, usize),
}

impl Run {
    pub fn lines(&self) -> Vec<(u64, String)> {
        self.out.clone()
    }

    pub fn text(&self) -> String {
        self.out.iter().map(|(_, l)| format!("{l}\n")).collect()
    }
}

/// True when the long versions of tests are wanted.
pub fn full() -> bool {
    std::env::var_os("DIECAST_FULL").is_some_and(|v| v != "0")
}

/// Who has a turn, and how many wait for one beside others.
struct Turns {
    beside: usize,
    alone: bool,
    waiting: usize,
}

static TURNS: Mutex<Turns> = Mutex::new(Turns { beside: 0, alone: false, waiting: 0 });
static CHANGED: Condvar = Condvar::new();

fn turns() -> MutexGuard<'static, Turns> {
    TURNS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wait_while(turns: MutexGuard<'static, Turns>, busy: fn(&mut Turns) -> bool) -> MutexGuard<'static, Turns> {
    diecast_quiet::apart(|| CHANGED.wait_while(turns, busy)).unwrap_or_else(PoisonError::into_inner)
}

/// Given back when dropped.
#[derive(Debug)]
pub struct Taken {
    alone: bool,
}

impl Drop for Taken {
    fn drop(&mut self) {
        let mut turns = turns();
        if self.alone {
            turns.alone = false;
        } else {
            turns.beside -= 1;
        }
        drop(turns);
        CHANGED.notify_all();
    }
}

/// Waits for a turn beside a few other runs.
pub fn beside() -> Turn<Taken> {
    let mut turns = turns();
    turns.waiting += 1;
    turns = wait_while(turns, |turns| turns.alone || turns.beside == RUNS_MAX);
    turns.waiting -= 1;
    turns.beside += 1;
    Turn::new(Taken { alone: false })
}

/// Builds something: nobody gets a turn alone meanwhile. Who has one may build.
pub fn building<T>(build: impl FnOnce() -> T) -> T {
    struct Waits;
    impl Drop for Waits {
        fn drop(&mut self) {
            turns().waiting -= 1;
            CHANGED.notify_all();
        }
    }
    turns().waiting += 1;
    let _waits = Waits;
    build()
}

/// Waits until nothing else runs or wants to: for measurements of cost. Who had to be waited for sooner would leave the machine
/// idle meanwhile but for the longest of the others' runs.
pub fn alone() -> Turn<Taken> {
    wait_while(turns(), |turns| turns.alone || turns.beside + turns.waiting > 0).alone = true;
    Turn::new(Taken { alone: true })
}

/// The program under test: `DIECAST_BIN`, or built beside this test.
pub fn diecast() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        if let Some(path) = std::env::var_os("DIECAST_BIN") {
            return path.into();
        }
        let target = target_dir();
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let status = Command::new(cargo)
            .args(["build", "--release", "--quiet", "--package", "diecast", "--target-dir"])
            .arg(&target)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status()
            .expect("cargo starts");
        assert!(status.success(), "building diecast failed");
        target.join("release/diecast")
    })
}

/// The target folder that this test was built in.
pub fn target_dir() -> PathBuf {
    let me = std::env::current_exe().expect("the path of this test");
    let profile = me.ancestors().find(|p| p.ends_with("debug") || p.ends_with("release"));
    profile.and_then(Path::parent).expect("target/PROFILE/deps/TEST").to_owned()
}

/// Runs a command in a world, beside a few other runs.
pub fn run(world: World, command: &[&str]) -> Run {
    let _turn = beside();
    run_with(world, &[], command, b"", &[])
}

/// As [`run`] with options of `diecast frame`, standard input and environment. Takes no turn.
pub fn run_with(world: World, options: &[&str], command: &[&str], stdin: &[u8], env: &[(&str, &str)]) -> Run {
    let of_world: &[&str] = match world {
        World::Native | World::Frame(_) => &[],
        World::Staying(_) => &["--call-sites", "never"],
        World::Trapped(_) => &["--tsc", "trap"],
    };
    let mut c = match world {
        World::Native => Command::new(command[0]),
        World::Frame(tdf) | World::Staying(tdf) | World::Trapped(tdf) => {
            let mut c = Command::new(diecast());
            c.args(["frame", "--tdf", tdf]).args(of_world).args(options).arg("--").arg(command[0]);
            c
        }
    };
    c.args(&command[1..]).envs(env.iter().copied());
    finish(c, stdin)
}

fn finish(mut c: Command, stdin: &[u8]) -> Run {
    let began = Instant::now();
    let mut child = c
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| panic!("{c:?}: {e}"));
    let mut input = child.stdin.take().expect("piped");
    let stdin = stdin.to_vec();
    let feeder = std::thread::spawn(move || {
        // A program may end without reading it all.
        let _ = input.write_all(&stdin);
    });
    let stdout = child.stdout.take().expect("piped");
    let reader = std::thread::spawn(move || {
        let mut lines = Vec::new();
        for line in BufReader::new(stdout).split(b'\n').map_while(Result::ok) {
            lines.push((began.elapsed().as_nanos() as u64, String::from_utf8_lossy(&line).into_owned()));
        }
        lines
    });
    let mut stderr = child.stderr.take().expect("piped");
    let errors = std::thread::spawn(move || {
        let mut text = Vec::new();
        let _ = stderr.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    });
    let counts = wait(&mut child, began);
    let status = child.wait().expect("a child of ours");
    let real = began.elapsed();
    let _ = feeder.join();
    use std::os::unix::process::ExitStatusExt;
    let quarter = counts.get(counts.len() / 4).copied().unwrap_or(0);
    Run {
        status: status.code(),
        signal: status.signal(),
        out: reader.join().expect("reads"),
        stderr: errors.join().expect("reads"),
        real,
        descriptors_max: counts.iter().copied().max().unwrap_or(0),
        descriptors: (quarter, counts.last().copied().unwrap_or(0)),
    }
}

/// Waits for the end, counting the process's descriptors now and then; ends it at the limit.
fn wait(child: &mut Child, began: Instant) -> Vec<usize> {
    let mut counts = Vec::new();
    let mut pause = Duration::from_millis(1);
    loop {
        if child.try_wait().expect("a child of ours").is_some() {
            return counts;
        }
        if began.elapsed() > LIMIT.max(Duration::from_secs(if full() { 600 } else { 0 })) {
            let _ = child.kill();
        }
        if let Ok(dir) = std::fs::read_dir(format!("/proc/{}/fd", child.id())) {
            counts.push(dir.count());
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

fn tsc() -> u64 {
    // SAFETY: reads a counter.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Real ns of so many ticks of the processor's counter.
pub fn real_ns_of_tsc(ticks: u64) -> f64 {
    static NS_PER_TICK: OnceLock<f64> = OnceLock::new();
    let per_tick = NS_PER_TICK.get_or_init(|| {
        // The best of several: one look may be torn by another thread.
        let look = |_| {
            let (t0, i0) = (tsc(), Instant::now());
            std::thread::sleep(Duration::from_millis(40));
            let (t1, i1) = (tsc(), Instant::now());
            (i1 - i0).as_nanos() as f64 / (t1 - t0) as f64
        };
        let mut looks: Vec<f64> = (0..5).map(look).collect();
        looks.sort_by(f64::total_cmp);
        looks[2]
    });
    ticks as f64 * per_tick
}
