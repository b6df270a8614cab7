//! The grammar of the network: links, what they do to packets, and graphs of them.

use crate::grammar::{Field, Section, Shape, optional, required};
use crate::quantity::{BANDWIDTH, DURATION, PACKETS, SHARE, SIZE};

/// Largest cost of a link.
pub(crate) const COST_MAX: u32 = 1_000_000;
/// Largest number of ports of a fat tree's switches: 16,000 places, more than a subnet has nodes here.
pub(crate) const FAT_TREE_PORTS_MAX: u32 = 40;

/// Most times that a link flaps.
pub(crate) const FLAPS_MAX: u32 = 1_000_000;

/// What a link does to packets, with or without a rule that bandwidth and delay be there.
macro_rules! with_parameters {
    ($bandwidth:ident, $($more:expr),* $(,)?) => {
        &[
            $($more,)*
            $bandwidth("bandwidth", Shape::Quantity(&BANDWIDTH), "of each direction"),
            $bandwidth("delay", Shape::Quantity(&DURATION), "one way"),
            optional(
                "framing",
                Shape::Choice(&["ip", "frame", "wire"]),
                "what the bandwidth counts: IP bytes, those plus 14 (if not given), or plus 38 of Ethernet on the wire",
            ),
            optional("jitter", Shape::QuantityOr(&DURATION, &JITTER), "how much the delay varies; uniform, in order"),
            optional("loss", Shape::QuantityOr(&SHARE, &LOSS), "loss after sending; random; 0% if not given"),
            optional("duplicate", Shape::Quantity(&SHARE), "packets that arrive twice"),
            optional("corrupt", Shape::Quantity(&SHARE), "packets with one bit flipped"),
            optional(
                "queue",
                Shape::AnyQuantity(&[&PACKETS, &SIZE, &DURATION]),
                "limit of what waits, in packets, bytes or time to wait; 1000 packets if not given",
            ),
            optional(
                "discipline",
                Shape::ChoiceOr(&["drop-tail", "codel", "fq-codel"], &DISCIPLINE),
                "how the queue is kept; drop-tail if not given",
            ),
        ]
    };
}

const COST: Field = optional("cost", Shape::Count { max: COST_MAX }, "for paths by cost; 1 if not given");
const BACK_FIELD: Field =
    optional("back", Shape::Section(&BACK), "what differs from 'to' back to 'from', or from the middle outwards");

pub(crate) static LINK: Section = Section {
    name: "a link",
    fields: with_parameters!(
        required,
        required("from", Shape::OneOrMore, "node groups, one link per node, or a switch or router"),
        required("to", Shape::HostName, "the other end: one switch, router or node"),
        COST,
        BACK_FIELD,
    ),
    one_of: &[],
    any_of: &[],
};

/// A link whose ends are known from where it is.
pub(crate) static PARAMETERS: Section = Section {
    name: "a link's description",
    fields: with_parameters!(required, COST, BACK_FIELD),
    one_of: &[],
    any_of: &[],
};

pub(crate) static BACK: Section =
    Section { name: "a link's way back", fields: with_parameters!(optional,), one_of: &[], any_of: &[] };

pub(crate) static JITTER: Section = Section {
    name: "a jitter",
    fields: &[
        required("spread", Shape::Quantity(&DURATION), "largest deviation, or the standard deviation when normal"),
        optional("distribution", Shape::Choice(&["uniform", "normal"]), "uniform if not given"),
        optional("reorder", Shape::Flag, "whether packets may overtake; false if not given"),
    ],
    one_of: &[],
    any_of: &[],
};

pub(crate) static LOSS: Section = Section {
    name: "a loss",
    fields: &[
        optional("random", Shape::Quantity(&SHARE), "of all packets"),
        optional("every", Shape::Quantity(&PACKETS), "the last of so many packets, again and again"),
        optional("burst", Shape::Section(&BURST), "Gilbert-Elliott: two states, good and bad"),
    ],
    one_of: &[],
    any_of: &["random", "every", "burst"],
};

pub(crate) static BURST: Section = Section {
    name: "a burst loss",
    fields: &[
        required("enter", Shape::Quantity(&SHARE), "chance per packet to go from good to bad"),
        required("leave", Shape::Quantity(&SHARE), "chance per packet to go from bad to good"),
        optional("loss", Shape::Quantity(&SHARE), "loss in the bad state; 100% if not given"),
        optional("between", Shape::Quantity(&SHARE), "loss in the good state; 0% if not given"),
    ],
    one_of: &[],
    any_of: &[],
};

pub(crate) static DISCIPLINE: Section = Section {
    name: "a discipline",
    fields: &[
        optional("red", Shape::Section(&RED), "random early detection (Floyd and Jacobson 1993)"),
        optional("codel", Shape::Section(&CODEL), "controlled delay (RFC 8289)"),
        optional("fq-codel", Shape::Section(&FQ_CODEL), "a queue with CoDel for each flow (RFC 8290)"),
    ],
    one_of: &["red", "codel", "fq-codel"],
    any_of: &[],
};

pub(crate) static RED: Section = Section {
    name: "RED",
    fields: &[
        required("min", Shape::Quantity(&PACKETS), "average that waits from which packets are dropped"),
        required("max", Shape::Quantity(&PACKETS), "average from which all are dropped"),
        optional("probability", Shape::Quantity(&SHARE), "of a drop when the average reaches 'max'; 2% if not given"),
        optional("weight", Shape::Quantity(&SHARE), "of the present queue in the average; 0.2% if not given"),
        optional("gentle", Shape::Flag, "from 'max' to twice that the probability rises to 1; false if not given"),
        ECN,
    ],
    one_of: &[],
    any_of: &[],
};

const TARGET: Field = optional("target", Shape::Quantity(&DURATION), "acceptable time in the queue; 5ms if not given");
const INTERVAL: Field =
    optional("interval", Shape::Quantity(&DURATION), "time above the target before drops; 100ms if not given");
const ECN: Field = optional(
    "ecn",
    Shape::Flag,
    "mark instead of dropping where the packet takes marks, for which the nodes' TCP then asks; false if not given",
);

pub(crate) static CODEL: Section =
    Section { name: "CoDel", fields: &[TARGET, INTERVAL, ECN], one_of: &[], any_of: &[] };

pub(crate) static FQ_CODEL: Section = Section {
    name: "FQ-CoDel",
    fields: &[
        TARGET,
        INTERVAL,
        ECN,
        optional("flows", Shape::Count { max: 65_536 }, "queues that flows are hashed to; 1024 if not given"),
        optional("quantum", Shape::Quantity(&SIZE), "bytes that a flow sends in its turn; 1514B if not given"),
    ],
    one_of: &[],
    any_of: &[],
};

pub(crate) static TOPOLOGY: Section = Section {
    name: "the topology",
    fields: &[
        optional("mtu", Shape::Quantity(&SIZE), "largest IP packet, 1280B to 9000B; 1500B if not given"),
        optional("offload", Shape::Flag, "nodes leave TCP segments and checksums to their NICs; false if not given"),
        optional("routing", Shape::Choice(&["delay", "cost"]), "what makes a path short; delay if not given"),
        optional(
            "ties",
            Shape::Choice(&["first", "spread"]),
            "equally short paths: the first for all, or spread over destinations; spread in a fat tree, else first",
        ),
        optional("switches", Shape::HostNames, "names of switches"),
        optional("routers", Shape::HostNames, "names of routers, which IP does not see either"),
        optional("links", Shape::ListOf(&LINK), "the links"),
        optional("routes", Shape::ListOf(&ROUTE), "ways that are given; they win over the search"),
        optional("star", Shape::Section(&STAR), "nodes around one switch"),
        optional("dumbbell", Shape::Section(&DUMBBELL), "two switches with a bottleneck between them"),
        optional("sites", Shape::ListOf(&SITE), "sites with a switch each, all linked to one router named 'wan'"),
        optional("fat_tree", Shape::Section(&FAT_TREE), "three layers of equal switches"),
        optional("graph", Shape::Section(&GRAPH), "routers and links from a GML or GraphML file"),
    ],
    one_of: &[],
    any_of: &["links", "star", "dumbbell", "sites", "fat_tree", "graph"],
};

pub(crate) static ROUTE: Section = Section {
    name: "a route",
    fields: &[
        required("at", Shape::HostName, "switch, router or node"),
        required("to", Shape::OneOrMore, "groups or nodes whose packets go this way"),
        required("via", Shape::HostName, "the next switch, router or node"),
    ],
    one_of: &[],
    any_of: &[],
};

pub(crate) static STAR: Section = Section {
    name: "a star",
    fields: &[
        required("nodes", Shape::OneOrMore, "groups or nodes"),
        optional("switch", Shape::HostName, "name of the switch; 'hub' if not given"),
        required("link", Shape::Section(&PARAMETERS), "from each node to the switch"),
    ],
    one_of: &[],
    any_of: &[],
};

pub(crate) static DUMBBELL: Section = Section {
    name: "a dumbbell",
    fields: &[
        required("left", Shape::OneOrMore, "groups or nodes at the switch 'left-switch'"),
        required("right", Shape::OneOrMore, "groups or nodes at the switch 'right-switch'"),
        required("access", Shape::Section(&PARAMETERS), "from each node to its switch"),
        required("bottleneck", Shape::Section(&PARAMETERS), "from 'left-switch' to 'right-switch'"),
    ],
    one_of: &[],
    any_of: &[],
};

pub(crate) static SITE: Section = Section {
    name: "a site",
    fields: &[
        required("name", Shape::HostName, "name of its switch"),
        required("nodes", Shape::OneOrMore, "groups or nodes at this site"),
        required("link", Shape::Section(&PARAMETERS), "from each node to the switch"),
        required("wan", Shape::Section(&PARAMETERS), "from the switch to the router 'wan'"),
    ],
    one_of: &[],
    any_of: &[],
};

pub(crate) static FAT_TREE: Section = Section {
    name: "a fat tree",
    fields: &[
        required("ports", Shape::Count { max: FAT_TREE_PORTS_MAX }, "ports of a switch, even; ports^3/4 nodes fit"),
        required("nodes", Shape::OneOrMore, "groups or nodes, spread over the edge switches in turn"),
        required("link", Shape::Section(&PARAMETERS), "every link: towards the core, and 'back' away from it"),
    ],
    one_of: &[],
    any_of: &[],
};

pub(crate) static GRAPH: Section = Section {
    name: "a graph",
    fields: &[
        required("file", Shape::Text, "a .gml or .graphml file beside the catalog"),
        optional("bandwidth", Shape::Quantity(&BANDWIDTH), "of edges that state none; unlimited if not given"),
        optional("delay", Shape::Quantity(&DURATION), "of edges that state none and whose ends have no coordinates"),
        optional("attach", Shape::ListOf(&ATTACH), "nodes at vertices that state their hosts' bandwidth"),
    ],
    one_of: &[],
    any_of: &[],
};

pub(crate) static ATTACH: Section = Section {
    name: "an attachment",
    fields: &[
        required("nodes", Shape::OneOrMore, "groups or nodes"),
        required("at", Shape::Text, "label, id or router's name of the vertex"),
    ],
    one_of: &[],
    any_of: &[],
};

/// What a fault names.
const LINK_NAME: Field = required(
    "link",
    Shape::Links,
    "'FROM:TO' with both ends of a link, or a node or group for its own links; or a list",
);

pub(crate) static FAULT: Section = Section {
    name: "a fault",
    fields: &[
        required("at", Shape::Quantity(&DURATION), "virtual time after the start of the workload"),
        optional("set", Shape::Section(&SET), "other parameters of links"),
        optional("cut", Shape::Links, "links that break: 'FROM:TO', or a node or group for its own links; or a list"),
        optional("heal", Shape::Links, "links that work again"),
        optional("flap", Shape::Section(&FLAP), "links that break and work again, several times"),
        optional(
            "partition",
            Shape::Sides,
            "a list of sides, each a node, a group or a list; the rest is one side more",
        ),
        optional("network", Shape::Choice(&["join", "reroute"]), "the partition ends; paths avoid what is cut now"),
        optional("one_way", Shape::Flag, "only from FROM to TO; false if not given"),
    ],
    one_of: &["set", "cut", "heal", "flap", "partition", "network"],
    any_of: &[],
};

pub(crate) static SET: Section =
    Section { name: "a change of links", fields: with_parameters!(optional, LINK_NAME), one_of: &[], any_of: &[] };

pub(crate) static FLAP: Section = Section {
    name: "a flapping link",
    fields: &[
        LINK_NAME,
        required("down", Shape::Quantity(&DURATION), "how long it is cut"),
        required("up", Shape::Quantity(&DURATION), "how long it works in between"),
        optional("times", Shape::Count { max: FLAPS_MAX }, "how often; once if not given"),
    ],
    one_of: &[],
    any_of: &[],
};
