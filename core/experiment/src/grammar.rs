//! The grammar as tables: every section of a catalog with its keys.
//!
//! One table feeds the reader (unknown and missing keys, hints) and the published JSON Schema, so the two
//! can't drift apart. What a value must look like is said by its [`Shape`].

use crate::grammar_net::{FAULT, TOPOLOGY};
use crate::quantity::{DRIFT, DURATION, Dimension, SIZE};

/// The only version there is.
pub(crate) const VERSION: u32 = 1;
/// Most nodes in one catalog: a flat /16 subnet holds them all.
pub(crate) const NODES_MAX: u32 = 10_000;
/// Most cores of one machine type.
pub(crate) const CORES_MAX: u32 = 1024;

/// A mapping with fixed keys.
pub(crate) struct Section {
    /// With its article, for messages.
    pub name: &'static str,
    pub fields: &'static [Field],
    /// Exactly one of these keys must be there; empty when there is no such rule.
    pub one_of: &'static [&'static str],
    /// At least one of these keys must be there; empty when there is no such rule.
    pub any_of: &'static [&'static str],
}

/// A key of a section.
pub(crate) struct Field {
    pub name: &'static str,
    pub required: bool,
    /// What it says, for the schema.
    pub about: &'static str,
    pub shape: Shape,
}

/// What a value looks like.
#[derive(Clone, Copy)]
pub(crate) enum Shape {
    /// The number 1.
    Version,
    /// A name that becomes a host name.
    HostName,
    /// A name that is referred to, not looked up in DNS.
    Name,
    /// Any text but the empty one.
    Text,
    /// An absolute path in a node.
    NodePath,
    /// A whole number from 1.
    Count {
        max: u32,
    },
    /// A decimal number above 0, relative to one core of the host.
    Speed,
    /// A decimal number above 0, the same on every host.
    Score,
    /// A number with a unit.
    Quantity(&'static Dimension),
    /// A number with a unit, with a sign or without.
    Signed(&'static Dimension),
    /// A number with a unit of one of several kinds.
    AnyQuantity(&'static [&'static Dimension]),
    /// A number with a unit, or a mapping that says more.
    QuantityOr(&'static Dimension, &'static Section),
    /// One of a few words, or a mapping that says more.
    ChoiceOr(&'static [&'static str], &'static Section),
    /// true or false.
    Flag,
    /// A host name, or a list of them.
    OneOrMore,
    /// A list of host names.
    HostNames,
    /// Names of links: `a:b`, a node or a group, or a list of them.
    Links,
    /// A list of host names or of lists of them.
    Sides,
    /// A list of words with `${parameter}` in them.
    Words,
    /// Path in the node to path beside the catalog.
    Files,
    /// Name of a variable to its text.
    Env,
    /// Name of a parameter to its value.
    Parameters,
    /// A TCP or UDP port.
    Port,
    /// `address:port` on the host.
    HostAddress,
    /// `:port/path`.
    HttpTarget,
    /// `$.a.b[0]`.
    JsonPath,
    /// A regular expression with one group.
    Pattern,
    /// One of a few words.
    Choice(&'static [&'static str]),
    /// A list of statistics.
    Statistics,
    Section(&'static Section),
    /// A mapping from host names to sections.
    MapOfHosts(&'static Section),
    /// A mapping from names to sections.
    MapOf(&'static Section),
    ListOf(&'static Section),
}

pub(crate) const fn required(name: &'static str, shape: Shape, about: &'static str) -> Field {
    Field { name, required: true, about, shape }
}

pub(crate) const fn optional(name: &'static str, shape: Shape, about: &'static str) -> Field {
    Field { name, required: false, about, shape }
}

pub(crate) static CATALOG: Section = Section {
    name: "the catalog",
    fields: &[
        required("diecast", Shape::Version, "version of the catalog's grammar"),
        required("name", Shape::HostName, "name of the experiment"),
        required("machine_types", Shape::MapOf(&MACHINE_TYPE), "the kinds of machines"),
        required("nodes", Shape::MapOfHosts(&GROUP), "groups of equal machines"),
        required("topology", Shape::Section(&TOPOLOGY), "the network between the nodes"),
        optional("programs", Shape::ListOf(&PROGRAM), "what serves; all are started, then all must be ready"),
        required("workload", Shape::Section(&WORKLOAD), "what puts load on the service, and for how long"),
        optional("faults", Shape::ListOf(&FAULT), "what changes in the network while the workload runs"),
        optional(
            "gateway",
            Shape::Section(&GATEWAY),
            "TCP and UDP ways between nodes and the host, outside the frame: real time, no link",
        ),
        required("metrics", Shape::MapOf(&METRIC), "what is measured"),
    ],
    one_of: &[],
    any_of: &[],
};

/// What a way carries, the first where nothing is said.
pub(crate) static PROTOCOLS: [&str; 2] = ["tcp", "udp"];

pub(crate) static GATEWAY: Section = Section {
    name: "the gateway",
    fields: &[
        optional("publish", Shape::ListOf(&PUBLISH), "ports of nodes that the host reaches"),
        optional("reach", Shape::ListOf(&REACH), "services of the host that nodes reach as host.diecast"),
    ],
    one_of: &[],
    any_of: &["publish", "reach"],
};

pub(crate) static PUBLISH: Section = Section {
    name: "a published port",
    fields: &[
        required("node", Shape::HostName, "the node that serves"),
        required("port", Shape::Port, "its port"),
        optional("protocol", Shape::Choice(&PROTOCOLS), "tcp if not given"),
        required("host", Shape::HostAddress, "where the host listens for it: 'address:port'"),
    ],
    one_of: &[],
    any_of: &[],
};

pub(crate) static REACH: Section = Section {
    name: "a service of the host",
    fields: &[
        required("on", Shape::OneOrMore, "groups or nodes that may use it"),
        required("port", Shape::Port, "the port of host.diecast in those nodes"),
        optional("protocol", Shape::Choice(&PROTOCOLS), "tcp if not given"),
        required("host", Shape::HostAddress, "where it serves on the host: 'address:port'"),
    ],
    one_of: &[],
    any_of: &[],
};

pub(crate) static MACHINE_TYPE: Section = Section {
    name: "a machine type",
    fields: &[
        required("cores", Shape::Count { max: CORES_MAX }, "virtual CPUs"),
        optional("speed", Shape::Speed, "speed of each; 1.0 is one core of the host"),
        optional(
            "score",
            Shape::Score,
            "speed of each as `diecast catalog host` measures it; a plan turns it into a speed",
        ),
        required("memory", Shape::Quantity(&SIZE), "memory limit"),
    ],
    one_of: &["speed", "score"],
    any_of: &[],
};

pub(crate) static GROUP: Section = Section {
    name: "a node group",
    fields: &[
        required("type", Shape::Name, "name of the machine type"),
        optional("count", Shape::Count { max: NODES_MAX }, "how many nodes; above 1 they are name-1, name-2, …"),
        optional("clock", Shape::Section(&CLOCK), "how wrong the clock of each is at the start"),
    ],
    one_of: &[],
    any_of: &[],
};

pub(crate) static CLOCK: Section = Section {
    name: "a clock",
    fields: &[
        optional("offset", Shape::Signed(&DURATION), "how far CLOCK_REALTIME is ahead of the lab's"),
        optional("drift", Shape::Signed(&DRIFT), "how much too fast all clocks are, at most 100000 ppm"),
    ],
    one_of: &[],
    any_of: &["offset", "drift"],
};

pub(crate) static PROGRAM: Section = Section {
    name: "a program",
    fields: &[
        required("on", Shape::OneOrMore, "groups or nodes that run it"),
        required("run", Shape::Words, "program and arguments"),
        optional("files", Shape::Files, "files to put into the node: path in the node to path beside the catalog"),
        optional("env", Shape::Env, "variables added to the environment"),
        optional("cwd", Shape::NodePath, "working directory in the node"),
        optional("ready", Shape::Section(&READY), "how to see that it serves"),
    ],
    one_of: &[],
    any_of: &[],
};

pub(crate) static READY: Section = Section {
    name: "a readiness check",
    fields: &[
        optional("tcp", Shape::Port, "a port that accepts connections"),
        optional("http", Shape::HttpTarget, "':port/path' that answers GET with a status from 200 to 399"),
        optional("log", Shape::Text, "text in a line of the output"),
        required("within", Shape::Quantity(&DURATION), "virtual time after the start"),
    ],
    one_of: &["tcp", "http", "log"],
    any_of: &[],
};

pub(crate) static WORKLOAD: Section = Section {
    name: "the workload",
    fields: &[
        optional("parameters", Shape::Parameters, "values that commands use as ${name}; -p name=value overrides"),
        optional("warm_up", Shape::Quantity(&DURATION), "virtual time before measuring; 0s if not given"),
        required("measure", Shape::Quantity(&DURATION), "virtual time that is measured"),
        required("run", Shape::Section(&LOAD), "the load generator"),
    ],
    one_of: &[],
    any_of: &[],
};

pub(crate) static LOAD: Section = Section {
    name: "the load generator",
    fields: &[
        required("on", Shape::OneOrMore, "groups or nodes that generate load"),
        required("command", Shape::Words, "program and arguments"),
        optional("files", Shape::Files, "files to put into the node: path in the node to path beside the catalog"),
        optional("env", Shape::Env, "variables added to the environment"),
        optional("cwd", Shape::NodePath, "working directory in the node"),
    ],
    one_of: &[],
    any_of: &[],
};

pub(crate) static METRIC: Section = Section {
    name: "a metric",
    fields: &[
        required("from", Shape::OneOrMore, "groups or nodes that report it"),
        optional("json", Shape::JsonPath, "path into the last JSON line of standard output"),
        optional("regex", Shape::Pattern, "expression with one group; its last match in standard output counts"),
        optional("samples", Shape::Text, "file of little-endian 64-bit values; its name ends in _<unit>.bin"),
        required("unit", Shape::Text, "unit of the numbers"),
        optional("combine", Shape::Choice(&["sum", "mean", "max", "min"]), "how numbers of several nodes become one"),
        optional("show", Shape::Statistics, "statistics of pooled samples; mean, p50 and p99 if not given"),
    ],
    one_of: &["json", "regex", "samples"],
    any_of: &[],
};
