//! What a pipe does to packets: its parameters, in original units, and what is wrong with them.

use serde::{Deserialize, Serialize};

use crate::spec::ETHERNET_HEADER_BYTES;

/// Packets that may wait in a pipe when the catalog does not say.
pub const QUEUE_PACKETS_DEFAULT: u32 = 1000;
/// Packets that may wait in an FQ-CoDel queue when the catalog does not say (RFC 8290).
pub const FQ_QUEUE_PACKETS_DEFAULT: u32 = 10_240;
/// Most flows of an FQ-CoDel queue.
pub const FQ_FLOWS_MAX: u32 = 65_536;
/// Normal jitter is cut off at this many standard deviations.
pub(crate) const NORMAL_CUT: f64 = 4.0;
/// Preamble and start delimiter, FCS, inter-frame gap: what a frame costs on the wire beyond itself.
const WIRE_EXTRA_BYTES: u64 = 8 + 4 + 12;
/// Least frame on the wire, FCS not counted: shorter ones are padded.
const WIRE_FRAME_MIN_BYTES: u64 = 60;

/// Parameters of one pipe; a link is two of them.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Link {
    /// Bits per virtual second; `None` is a pipe without serialisation time and without queue.
    pub bandwidth_bps: Option<u64>,
    /// Which bytes of a packet the bandwidth counts.
    pub framing: Framing,
    /// One-way propagation delay, virtual nanoseconds.
    pub delay_ns: u64,
    /// How much the delay varies.
    pub jitter: Option<Jitter>,
    /// Probability that a packet is lost after it was sent, 0 to 1.
    pub loss: f64,
    /// Every n-th packet that is sent is lost: the n-th, the 2n-th and so on.
    pub loss_every: Option<u32>,
    /// Loss in bursts.
    pub loss_burst: Option<GilbertElliott>,
    /// Probability that a packet arrives twice.
    pub duplicate: f64,
    /// Probability that one bit of a packet's payload is flipped.
    pub corrupt: f64,
    /// Packets that may wait, the one being sent not counted; a packet that finds the queue full is dropped.
    pub queue_packets: u32,
    /// Bytes of frames that may wait, if that is limited too.
    pub queue_bytes: Option<u64>,
    /// How long a packet may have to wait by the bytes before it, if that is limited too.
    pub queue_delay_ns: Option<u64>,
    /// Who waits, who goes first and who is dropped before the queue is full.
    pub discipline: Discipline,
}

impl Default for Link {
    fn default() -> Link {
        Link {
            bandwidth_bps: None,
            framing: Framing::Frame,
            delay_ns: 0,
            jitter: None,
            loss: 0.0,
            loss_every: None,
            loss_burst: None,
            duplicate: 0.0,
            corrupt: 0.0,
            queue_packets: QUEUE_PACKETS_DEFAULT,
            queue_bytes: None,
            queue_delay_ns: None,
            discipline: Discipline::DropTail,
        }
    }
}

/// A group of parameters that changes as one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkPart {
    /// `bandwidth_bps`.
    Bandwidth,
    /// `framing`.
    Framing,
    /// `delay_ns`.
    Delay,
    /// `jitter`.
    Jitter,
    /// `loss`, `loss_every`, `loss_burst`.
    Loss,
    /// `duplicate`.
    Duplicate,
    /// `corrupt`.
    Corrupt,
    /// `queue_packets`, `queue_bytes`, `queue_delay_ns`.
    Queue,
    /// `discipline`; a queue limit that is the old discipline's default becomes the new one's.
    Discipline,
}

/// Which bytes of a packet a bandwidth counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Framing {
    /// The IP packet alone.
    Ip,
    /// The IP packet and its Ethernet header: 14 bytes more.
    #[default]
    Frame,
    /// What Ethernet takes on the wire: preamble, header, padding to 64 bytes, FCS and gap: 38 bytes more.
    Wire,
}

impl Framing {
    /// Bytes that a frame of `bytes`, Ethernet header included, counts.
    pub fn counted(self, bytes: usize) -> u64 {
        let bytes = bytes as u64;
        match self {
            Framing::Ip => bytes.saturating_sub(ETHERNET_HEADER_BYTES as u64),
            Framing::Frame => bytes,
            Framing::Wire => bytes.max(WIRE_FRAME_MIN_BYTES) + WIRE_EXTRA_BYTES,
        }
    }
}

/// How a pipe's delay varies from packet to packet. A delay is never below zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Jitter {
    /// Its shape.
    pub distribution: Distribution,
    /// Uniform: the delay is at most this much shorter or longer. Normal: the standard deviation, cut off at four.
    pub spread_ns: u64,
    /// Whether a packet may overtake an earlier one. If not, it arrives no earlier than the one before it.
    pub reorder: bool,
}

/// Shape of a jitter.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Distribution {
    /// All deviations are equally likely.
    Uniform,
    /// Bell curve.
    Normal,
}

/// Loss in two states, good and bad (Gilbert 1960, Elliott 1963). A packet meets the loss of the present state, then
/// the state may change. Long-run loss: (enter * loss_bad + leave * loss_good) / (enter + leave).
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GilbertElliott {
    /// Probability per packet to go from good to bad.
    pub enter: f64,
    /// Probability per packet to go from bad to good.
    pub leave: f64,
    /// Probability of loss in the good state.
    pub loss_good: f64,
    /// Probability of loss in the bad state.
    pub loss_bad: f64,
}

/// How a queue is kept.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Discipline {
    /// First in, first out; a packet that finds the queue full is dropped.
    #[default]
    DropTail,
    /// Random early detection (Floyd and Jacobson 1993).
    Red(Red),
    /// Controlled delay (RFC 8289).
    Codel(Codel),
    /// A queue with CoDel for each flow, served round robin, new flows first (RFC 8290).
    FqCodel(FqCodel),
}

impl Discipline {
    /// Whether it marks packets that take marks instead of dropping them.
    pub fn marks(&self) -> bool {
        match self {
            Discipline::DropTail => false,
            Discipline::Red(red) => red.ecn,
            Discipline::Codel(codel) => codel.ecn,
            Discipline::FqCodel(fq) => fq.codel.ecn,
        }
    }
}

/// Parameters of RED.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Red {
    /// Average number of waiting packets from which packets are dropped.
    pub min_packets: u32,
    /// Average from which every packet is dropped, or from twice which when `gentle`.
    pub max_packets: u32,
    /// Probability of a drop when the average reaches `max_packets`.
    pub max_probability: f64,
    /// Weight of the present queue in the average.
    pub weight: f64,
    /// Between `max_packets` and twice that the probability rises from `max_probability` to 1.
    pub gentle: bool,
    /// Mark ECN-capable packets instead of dropping them, as long as the average is below its maximum.
    pub ecn: bool,
}

impl Red {
    /// The paper's weight and probability.
    pub const fn new(min_packets: u32, max_packets: u32) -> Red {
        Red { min_packets, max_packets, max_probability: 0.02, weight: 0.002, gentle: false, ecn: false }
    }
}

/// Parameters of CoDel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Codel {
    /// Acceptable time in the queue.
    pub target_ns: u64,
    /// Time above the target after which packets are dropped.
    pub interval_ns: u64,
    /// Mark ECN-capable packets instead of dropping them.
    pub ecn: bool,
}

impl Default for Codel {
    fn default() -> Codel {
        Codel { target_ns: 5_000_000, interval_ns: 100_000_000, ecn: false }
    }
}

/// Parameters of FQ-CoDel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FqCodel {
    /// CoDel of each flow.
    pub codel: Codel,
    /// Queues to which flows are hashed.
    pub flows: u32,
    /// Bytes that a flow may send before the next has its turn.
    pub quantum_bytes: u32,
}

impl Default for FqCodel {
    fn default() -> FqCodel {
        FqCodel { codel: Codel::default(), flows: 1024, quantum_bytes: 1514 }
    }
}

impl Discipline {
    /// Packets that may wait when nothing else is said.
    pub const fn queue_packets_default(&self) -> u32 {
        match self {
            Discipline::FqCodel(_) => FQ_QUEUE_PACKETS_DEFAULT,
            _ => QUEUE_PACKETS_DEFAULT,
        }
    }

    /// Its name in a catalog.
    pub const fn name(&self) -> &'static str {
        match self {
            Discipline::DropTail => "drop-tail",
            Discipline::Red(_) => "red",
            Discipline::Codel(_) => "codel",
            Discipline::FqCodel(_) => "fq-codel",
        }
    }
}

impl Jitter {
    /// The shortest delay that a packet can have.
    pub(crate) fn least(&self, delay_ns: u64) -> u64 {
        match self.distribution {
            Distribution::Uniform => delay_ns.saturating_sub(self.spread_ns),
            Distribution::Normal => delay_ns.saturating_sub((self.spread_ns as f64 * NORMAL_CUT) as u64 + 1),
        }
    }
}

/// What is wrong with the parameters of a pipe.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum LinkError {
    /// A rate of zero never delivers anything.
    #[error("a bandwidth of 0 bit/s")]
    NoBandwidth,
    /// A probability outside 0 to 1.
    #[error("a {what} of {value}, expected 0 to 1")]
    BadShare {
        /// Which.
        what: &'static str,
        /// Value found.
        value: f64,
    },
    /// A number that is too small or too large.
    #[error("{what} of {value}, expected {expected}")]
    BadNumber {
        /// Which.
        what: &'static str,
        /// Value found.
        value: f64,
        /// What would be right.
        expected: &'static str,
    },
}

impl Link {
    /// Whether a pipe can have these parameters.
    pub fn check(&self) -> Result<(), LinkError> {
        if self.bandwidth_bps == Some(0) {
            return Err(LinkError::NoBandwidth);
        }
        let mut shares = vec![("loss", self.loss), ("duplication", self.duplicate), ("corruption", self.corrupt)];
        if let Some(burst) = self.loss_burst {
            shares.extend([
                ("probability to enter a burst", burst.enter),
                ("probability to leave a burst", burst.leave),
                ("loss outside of bursts", burst.loss_good),
                ("loss in bursts", burst.loss_bad),
            ]);
        }
        if let Discipline::Red(red) = self.discipline {
            shares.push(("largest probability of RED", red.max_probability));
        }
        if let Some((what, value)) = shares.into_iter().find(|(_, value)| !(0.0..=1.0).contains(value)) {
            return Err(LinkError::BadShare { what, value });
        }
        let number = |good: bool, what, value: f64, expected| {
            if good { Ok(()) } else { Err(LinkError::BadNumber { what, value, expected }) }
        };
        number(self.loss_every != Some(0), "a loss of every n-th packet with n", 0.0, "1 or more")?;
        match self.discipline {
            Discipline::DropTail => Ok(()),
            Discipline::Red(red) => {
                let (min, max) = (red.min_packets, red.max_packets);
                number(max > min, "a RED maximum", f64::from(max), "more packets than its minimum")?;
                let weighs = red.weight > 0.0 && red.weight <= 1.0;
                number(weighs, "a RED weight", red.weight, "above 0, at most 1")
            }
            Discipline::Codel(codel) => codel.check(),
            Discipline::FqCodel(fq) => {
                let flows = (1..=FQ_FLOWS_MAX).contains(&fq.flows);
                number(flows, "an FQ-CoDel number of flows", f64::from(fq.flows), "1 to 65536")?;
                number(fq.quantum_bytes > 0, "an FQ-CoDel quantum", 0.0, "1 byte or more")?;
                fq.codel.check()
            }
        }
    }

    /// This link with some parts of another. No rule of [`Link::check`] spans two parts, so from two good links comes a
    /// good one.
    pub fn with(&self, parts: &[LinkPart], of: &Link) -> Link {
        let mut link = *self;
        for part in parts {
            match part {
                LinkPart::Bandwidth => link.bandwidth_bps = of.bandwidth_bps,
                LinkPart::Framing => link.framing = of.framing,
                LinkPart::Delay => link.delay_ns = of.delay_ns,
                LinkPart::Jitter => link.jitter = of.jitter,
                LinkPart::Loss => {
                    (link.loss, link.loss_every, link.loss_burst) = (of.loss, of.loss_every, of.loss_burst);
                }
                LinkPart::Duplicate => link.duplicate = of.duplicate,
                LinkPart::Corrupt => link.corrupt = of.corrupt,
                LinkPart::Queue => link.set_queue(of.queue_packets, of.queue_bytes, of.queue_delay_ns),
                LinkPart::Discipline => {
                    if !parts.contains(&LinkPart::Queue) && self.has_default_queue() {
                        link.set_queue(of.discipline.default_queue_packets(), None, None);
                    }
                    link.discipline = of.discipline;
                }
            }
        }
        link
    }

    fn set_queue(&mut self, packets: u32, bytes: Option<u64>, delay_ns: Option<u64>) {
        (self.queue_packets, self.queue_bytes, self.queue_delay_ns) = (packets, bytes, delay_ns);
    }

    fn has_default_queue(&self) -> bool {
        let only_packets = self.queue_bytes.is_none() && self.queue_delay_ns.is_none();
        only_packets && self.queue_packets == self.discipline.default_queue_packets()
    }

    /// The shortest propagation delay that a packet can have.
    pub(crate) fn least_delay_ns(&self) -> u64 {
        self.jitter.map_or(self.delay_ns, |j| j.least(self.delay_ns))
    }
}

impl Discipline {
    /// Packets that may wait when nobody says how many.
    fn default_queue_packets(&self) -> u32 {
        match self {
            Discipline::FqCodel(_) => FQ_QUEUE_PACKETS_DEFAULT,
            _ => QUEUE_PACKETS_DEFAULT,
        }
    }
}

impl Codel {
    fn check(&self) -> Result<(), LinkError> {
        if self.interval_ns > 0 {
            return Ok(());
        }
        Err(LinkError::BadNumber { what: "a CoDel interval", value: 0.0, expected: "1 ns or more" })
    }
}
