//! How clocks of cores hit threads whose packets tell what they use.

#[expect(dead_code, reason = "other tests use the rest")]
mod common;

use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use common::{core_ticks, meter_sleep, nic, poll_ms, skip, spin, thread_cpu_ns, two_nodes};
use diecast_core_abi::{METER_PAYS, packets_tell};
use diecast_core_net::NetSpec;
use diecast_host_egress::Egress;
use diecast_host_net::{TRAILER_BYTES, in_netns};
use diecast_host_sys::{time, trap};
use diecast_host_tick::{Cadence, CoreTicks};

/// A node's thread that clocks of cores meter and that sends datagrams.
struct Sender {
    ticks: CoreTicks,
    spec: NetSpec,
    ns: OwnedFd,
    tap: OwnedFd,
    _egress: Egress,
    /// One at a time: all of them run on the same core.
    _alone: MutexGuard<'static, ()>,
}

/// No `Turn`, as it is held around a look: nobody takes it in one.
static ALONE: Mutex<()> = Mutex::new(());

impl Sender {
    /// None, and a printed reason, where these programs can't be loaded.
    fn new(cadence: Cadence) -> Option<Sender> {
        if skip() {
            return None;
        }
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let egress = Egress::load().unwrap();
        let ticks = core_ticks(&egress, cadence)?;
        let spec = two_nodes();
        let (ns, tap, _) = nic(&egress, &spec);
        Some(Sender { ticks, spec, ns, tap, _egress: egress, _alone: alone })
    }

    /// On one core, whose clock ticks so far apart, with a handler for hits; `f` gets what sends a datagram.
    fn run<T: Send>(&self, period_ns: u64, f: impl FnOnce(&dyn Fn()) -> T + Send) -> T {
        in_netns(self.ns.as_fd(), || {
            let core = time::allowed_cpus()[0];
            time::pin_to(&[core]).unwrap();
            trap::install_handler();
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
            poll_ms(1);
            let _ticking = self.ticks.tick_here(core, period_ns).unwrap();
            f(&|| {
                socket.send_to(&[7; 100], (self.spec.nodes[1].ipv4, 7000)).unwrap();
            })
        })
        .unwrap()
    }
}

/// A packet that leaves between a late tick of its core's clock and the hit tells for how long the core stood still.
#[test]
fn a_frame_tells_that_its_senders_core_stood_still() {
    let cadence = Cadence::of_grain(1_000_000);
    let Some(sender) = Sender::new(cadence) else { return };
    // Of four ticks three are missing: three periods are told. The median, as a core now and then does stand still, for longer.
    let expected_ns = 3 * cadence.period_ns - 600_000..3 * cadence.period_ns + 100_000;
    let mut told_ns = sender.run(4 * cadence.period_ns, |send| {
        let (end, mut buffer, mut told_ns) = (Instant::now() + Duration::from_secs(20), [0; 2048], Vec::new());
        while told_ns.len() < 15 && Instant::now() < end {
            send();
            let n = rustix::io::read(&sender.tap, &mut buffer).unwrap_or(0);
            let tid =
                buffer[..n].last_chunk::<TRAILER_BYTES>().map_or(0, |t| u32::from_ne_bytes([t[4], t[5], t[6], t[7]]));
            told_ns.extend((tid >> 22 > 0).then_some(u64::from(tid >> 22) << 18));
        }
        told_ns
    });
    told_ns.sort_unstable();
    assert!(told_ns.get(told_ns.len() / 2).is_some_and(|ns| expected_ns.contains(ns)), "{told_ns:?}");
}

/// A thread that gives the core up before each tick is hit as it gets it again, after each grain; not where packets have told
/// meanwhile what it used.
#[test]
fn a_thread_whose_packets_tell_what_it_used_is_not_overdue() {
    let Some(sender) = Sender::new(Cadence::of_grain(1_000_000)) else { return };
    let hits = |packets: bool| {
        // Of a period in which no tick comes while the test lasts.
        sender.run(3_600_000_000_000, |send| {
            let before = trap::hits();
            for _ in 0..100 {
                spin(Duration::from_micros(500));
                if packets {
                    send();
                }
                poll_ms(1);
            }
            trap::hits() - before
        })
    };
    let (without, with) = (hits(false), hits(true));
    // Of 50 ms one after each grain and up to a burst more; with packets only where others took the core for as long.
    assert!((30..=50).contains(&without) && with <= without / 5, "{without} without packets, {with} with");
}

/// A thread whose bursts end with a packet is hit less often, and its hits say that packets tell what it uses. One whose packets
/// come as a burst begins is hit as any other; one that pays what it owes after each packet is hit hardly ever, and less than half
/// as much in between does not change that.
#[test]
fn a_hit_tells_whether_packets_tell_what_its_thread_uses() {
    let cadence = Cadence::of_grain(500_000);
    let Some(sender) = Sender::new(cadence) else { return };
    // Hits that say so, all, and those within four tenths of a period of CPU time after the last, in bursts of 500 us of
    // which a part comes before the packet.
    let hits = |before_us: u64, pays: bool| {
        sender.run(cadence.period_ns, |send| {
            let (mut say, mut all, mut close, mut last_ns) = (0, 0, 0, 0);
            // A hit before the thread has given up its core since its first packet.
            send();
            let (before, end) = (trap::hits(), Instant::now() + Duration::from_secs(1));
            while trap::hits() == before && Instant::now() < end {}
            send();
            poll_ms(1);
            for burst in 0..320 {
                let mut had = trap::hits();
                for (part_us, packet) in [(before_us, true), (500 - before_us, false)] {
                    let end_ns = thread_cpu_ns() + part_us * 1_000;
                    while thread_cpu_ns() < end_ns {
                        // The first bursts teach what the thread does.
                        if trap::hits() > had && burst >= 20 {
                            let now_ns = thread_cpu_ns();
                            all += 1;
                            say += u32::from(packets_tell(trap::told()));
                            close += u32::from(now_ns - last_ns < cadence.period_ns * 2 / 5);
                            last_ns = now_ns;
                        }
                        had = trap::hits();
                    }
                    if packet {
                        send();
                    }
                }
                if pays {
                    meter_sleep(Duration::from_micros(100), METER_PAYS);
                }
                // Of no even length, or ticks come at certain places of the bursts.
                std::thread::sleep(Duration::from_micros(500 + burst * 617 % 1_400));
            }
            (say, all, close)
        })
    };
    diecast_quiet::look(|| {
        // 150 ms: a tick in 927 us without, some of them soon after the last; with none within half a period.
        let ((none, often, near), (each, seldom, close)) = (hits(50, false), hits(480, false));
        assert!(none == 0 && (110..=240).contains(&often) && near >= often / 12, "{none} of {often}, {near} close");
        assert!(each == seldom && (60..often).contains(&seldom), "{each} of {seldom}, {often} without");
        assert!(close <= near / 8, "{close} of {seldom} close to the last, {near} of {often} without");
        for before_us in [480, 350] {
            let (all, rare, _) = hits(before_us, true);
            assert!(all == rare && rare <= seldom / 4, "{all} of {rare}, {seldom} where nothing is paid");
        }
        let (early, hit, _) = hits(50, true);
        assert!(early == 0 && hit >= 110, "{early} of {hit}");
    });
}
