use std::process::{Child, Command};
use std::sync::atomic::AtomicU64;

use diecast_core_vtime::Tdf;

use super::*;
use crate::frame::CpuConfig;

const MS: u64 = 1_000_000;

/// A node of one process, which sleeps, and what the kernel says the node used: read by the first, and more at each read.
struct Case {
    lab: Arc<LabFrame>,
    child: Child,
    cpu_ns: u64,
    used_ns: Arc<AtomicU64>,
    each_ns: Arc<AtomicU64>,
    monitor: Monitor,
}

impl Case {
    fn new() -> Case {
        let child = Command::new("sleep").arg("600").spawn().unwrap();
        let pid = child.id() as i32;
        std::thread::sleep(std::time::Duration::from_millis(200));
        let schedstat = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap();
        let cpu_ns: u64 = schedstat.split(' ').next().unwrap().parse().unwrap();
        let (used_ns, each_ns) = (Arc::new(AtomicU64::new(cpu_ns)), Arc::new(AtomicU64::new(0)));
        let (used, each) = (used_ns.clone(), each_ns.clone());
        let cpu = CpuConfig { metered: true, ..CpuConfig::PLAIN };
        let lab = LabFrame::start("10".parse::<Tdf>().unwrap());
        let usage = move || Ok(used.fetch_add(each.load(Relaxed), Relaxed));
        let members = Box::new(move || Ok(vec![pid]));
        let node = NodeFrame::create(&lab, "n", cpu, members, Some(Box::new(usage))).unwrap();
        let slot = node.page().claim_slot(process::number_inside(Tid(pid)).unwrap()).unwrap();
        slot.last_cpu_ns.store(cpu_ns, Relaxed);
        let mut monitor = Monitor::new(node);
        assert_eq!(monitor.tick(&lab).unwrap(), None);
        Case { lab, child, cpu_ns, used_ns, each_ns, monitor }
    }

    fn charge(&self, ns: i64) {
        self.monitor.node.page().counters.charged_ns.fetch_add(ns as u64, Relaxed);
    }

    fn charged_to(&self, ns: u64) {
        let page = self.monitor.node.page();
        page.slots.iter().find(|s| s.tid.load(Relaxed) != 0).unwrap().last_cpu_ns.store(ns, Relaxed);
    }

    fn tick(&mut self) -> Option<Window> {
        self.monitor.tick(&self.lab).unwrap()
    }

    /// Once what nobody seems to have charged has been doubted for long enough.
    fn tick_later(&mut self) -> Option<Window> {
        if let Some(since) = &mut self.monitor.doubted_ns {
            *since = since.saturating_sub(DOUBT_LASTS_NS);
        }
        self.tick()
    }
}

impl Drop for Case {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_charge_that_never_ends_does_not_end_exact_windows() {
    let mut case = Case::new();
    case.monitor.node.page().counters.charges_begun.fetch_add(1, Relaxed);
    let used = |case: &mut Case| {
        case.used_ns.fetch_add(25 * MS, Relaxed);
        case.charge(25 * MS as i64);
        case.tick().is_some()
    };
    // Windows of twice the length until it is known: a second of which no look was without it.
    assert_eq!([0; 4].map(|_| used(&mut case)), [false, true, false, true]);
    for (ago_ns, lost) in [(LOST_AFTER_NS / 2, 0), (LOST_AFTER_NS, 0), (LOST_AFTER_NS, 1)] {
        case.monitor.open_from_ns = time::monotonic_ns().saturating_sub(ago_ns);
        assert_eq!([0; 2].map(|_| used(&mut case)), [false, true]);
        assert_eq!(case.monitor.lost, lost);
    }
    assert_eq!([0; 2].map(|_| used(&mut case)), [true, true]);
    // It was not killed after all.
    case.monitor.node.page().counters.charges_done.fetch_add(1, Relaxed);
    assert_eq!([0; 2].map(|_| used(&mut case)), [true, true]);
}

/// Whoever takes what threads tell may be busy. The thread has ended; it had been charged 5 ms, or nothing, or has no slot.
#[test]
fn what_a_thread_told_before_it_ended_is_on_its_way() {
    const DEAD: u32 = 1 << 22;
    for (charged_to_ns, told_ns, then) in
        [(5 * MS, 7 * MS, Then::Ends), (0, 2 * MS, Then::Blocks), (0, 2 * MS, Then::Ends), (5 * MS, 4 * MS, Then::Ends)]
    {
        let mut case = Case::new();
        let page = case.monitor.node.page();
        if charged_to_ns > 0 {
            page.claim_slot(DEAD).unwrap().last_cpu_ns.store(charged_to_ns, Relaxed);
        }
        let at = diecast_core_vtime::RealNs(0);
        let by = Sent {
            tid: DEAD,
            at,
            cpu_ns: told_ns,
            burst_cpu_ns: 0,
            woke: at,
            run_delay_ns: 0,
            gap_ns: 0,
            switches: 0,
            paused_ns: 0,
        };
        let left = Arc::new(std::sync::Mutex::new(vec![(by, then)]));
        let told = left.clone();
        case.monitor.on_the_way = Some(Box::new(move || told.lock().unwrap().clone()));
        let on_the_way_ns = told_ns as i64 - charged_to_ns as i64;
        case.used_ns.fetch_add(25 * MS, Relaxed);
        case.charge(25 * MS as i64 - on_the_way_ns);
        let charged_ns = (25 * MS as i64 - on_the_way_ns) as u64;
        let window = case.tick().unwrap();
        assert_eq!((window.charged_ns, window.used_ns, window.escaped_ns), (charged_ns, charged_ns, 0));
        // It is charged, and more is nobody's.
        left.lock().unwrap().clear();
        case.monitor.node.page().slot(DEAD).unwrap().account_to(charged_to_ns, told_ns);
        case.used_ns.fetch_add(25 * MS, Relaxed);
        case.charge(22 * MS as i64 + on_the_way_ns);
        assert_eq!(case.tick(), None);
        let (window, used_ns) = (case.tick_later().unwrap(), (25 * MS as i64 + on_the_way_ns) as u64);
        assert_eq!((window.charged_ns, window.used_ns, window.escaped_ns), (used_ns, used_ns, 3 * MS));
    }
}

#[test]
fn what_a_packet_charges_ahead_is_on_its_way_and_what_nobody_charges_escaped() {
    let mut case = Case::new();
    case.used_ns.fetch_add(25 * MS, Relaxed);
    case.charge(27 * MS as i64);
    case.charged_to(case.cpu_ns + 2 * MS);
    let window = |charged_ns, escaped_ns| {
        Some(Window {
            charged_ns: charged_ns * MS,
            used_ns: charged_ns * MS,
            escaped_ns: escaped_ns * MS,
            ..Window::default()
        })
    };
    assert_eq!(case.tick(), window(27, 0));
    // A hit gives it back, and 3 ms were nobody's.
    case.used_ns.fetch_add(25 * MS, Relaxed);
    case.charge(25 * MS as i64 - 5 * MS as i64);
    case.charged_to(case.cpu_ns);
    assert_eq!([case.tick(), case.tick_later()], [None, window(23, 3)]);
}

/// The thread has ended, and what it handed on is on its way to its ledger.
#[test]
fn what_is_charged_after_a_look_has_not_escaped() {
    let mut case = Case::new();
    for charged_ms in [22, 25] {
        case.used_ns.fetch_add(25 * MS, Relaxed);
        case.charge(charged_ms * MS as i64);
        let first = case.tick();
        case.charge((25 - charged_ms) * MS as i64);
        let window = first.or_else(|| case.tick_later()).unwrap();
        assert_eq!((window.charged_ns, window.used_ns, window.escaped_ns), (25 * MS, 25 * MS, 0));
    }
}

#[test]
fn threads_read_one_after_the_other_are_taken_for_late_where_none_ended_and_the_node_used_as_much() {
    let totals = |usage, beyond_ns| Totals { usage, threads_ns: usage as i64 - beyond_ns, ..Totals::default() };
    let last = Counted { totals: totals(5 * MS, 70_000), tids: BTreeSet::from([1, 2]), gone: BTreeMap::new() };
    let missed = |tids: &[i32], new_ns, beyond_ns, moved_ns| {
        let threads = Threads { tids: tids.iter().copied().collect(), new_ns, ..Threads::default() };
        last.missed_ns(&threads, &BTreeMap::new(), &totals(25 * MS, beyond_ns), moved_ns)
    };
    // 30 us read too early or too late, of the 60 that the node used meanwhile.
    for us in [-30_000, 0, 30_000] {
        assert_eq!(missed(&[1, 2], 0, 70_000 + us, 60_000), Some(us));
        assert_eq!(missed(&[1, 2, 3], 20 * MS, 70_000 + us, 60_000), Some(us), "one began");
        assert_eq!(missed(&[1, 2, 3], 21 * MS, 70_000 + us, 60_000), None, "one joined");
        assert_eq!(missed(&[1, 3], 0, 70_000 + us, 60_000), None, "one ended");
    }
    for us in [-31_000, 31_000] {
        assert_eq!(missed(&[1, 2], 0, 70_000 + us, 60_000), None, "more than the node used");
    }
    assert_eq!(missed(&[1, 2], 0, 71_000, 0), None, "what ended unseen, once the node rests");
    assert_eq!(missed(&[1, 2], 0, 71_000, 10 * MS), None, "no look takes so long");
}

/// Threads 4, 5 and 6 are gone at the second and third look, 70 us are the node's own.
#[test]
fn what_threads_that_began_and_ended_between_two_looks_used_is_none_that_was_missed() {
    let totals = |usage, beyond_ns| Totals { usage, threads_ns: usage as i64 - beyond_ns, ..Totals::default() };
    let tids = || BTreeSet::from([1, 2]);
    let slots = |used: &[(u32, u64)]| used.iter().map(|(tid, ns)| ((*tid as usize, *tid), *ns)).collect();
    let own_ns = 70_000 + 2 * MS as i64;
    let first = Counted::new(totals(5 * MS, own_ns), tids(), slots(&[(4, MS)]), None);
    let look = |last: &Counted, used: &[(u32, u64)], ended_ns| {
        let threads = Threads { tids: tids(), ..Threads::default() };
        last.missed_ns(&threads, &slots(used), &totals(25 * MS, own_ns + ended_ns), 60_000)
    };
    assert_eq!(look(&first, &[(4, MS), (5, MS)], MS as i64 + 20_000), Some(20_000), "5 was charged all of it");
    assert_eq!(look(&first, &[(4, MS)], MS as i64 + 20_000), None, "or is not charged yet, which shows");
    assert_eq!(look(&first, &[(4, 2 * MS)], 20_000), Some(20_000), "what 4 used was known, whenever it is charged");
    // 5 was charged half of what it used by the second look, and 6 nothing: 25 us of that were taken for missed.
    let second = [(4, 2 * MS), (5, 25_000)];
    assert_eq!(look(&first, &second, 25_000 + 25_000), Some(25_000));
    let counted = |last| Counted::new(totals(25 * MS, own_ns + 25_000), tids(), slots(&second), Some(last));
    let second = counted(first);
    let third = [(4, 3 * MS), (5, 35_000), (6, 15_000)];
    assert_eq!(
        look(&second, &third, 50_000 - 30_000),
        Some(-30_000),
        "by the third all is charged, and it reads too much"
    );
}

/// All three readings of the node's account, 60 us apart, are of one instant as far as the window goes; whether a thread has
/// begun and ended since the last look or not, whose 2 ms were charged.
#[test]
fn what_threads_were_read_too_early_for_is_on_its_way() {
    for ended_ns in [0, 2 * MS] {
        let mut case = Case::new();
        if ended_ns > 0 {
            case.monitor.node.page().claim_slot(1 << 22).unwrap().last_cpu_ns.store(ended_ns, Relaxed);
        }
        case.used_ns.fetch_add(25 * MS, Relaxed);
        case.each_ns.store(60_000, Relaxed);
        case.charge(25 * MS as i64);
        // Read before it, the thread has used 20 us more by the middle of the look.
        let usage_ns = case.used_ns.load(Relaxed) + 60_000 + 30_000;
        let beyond_ns = (usage_ns - ended_ns) as i64 - case.cpu_ns as i64 - 20_000;
        let last = &mut case.monitor.last.as_mut().unwrap().totals;
        last.threads_ns = last.usage as i64 - beyond_ns;
        let window = case.tick().unwrap();
        assert_eq!(window.used_ns, 25 * MS + 90_000 - 20_000, "the 20 us are not charged yet");
        assert_eq!((window.charged_ns, window.escaped_ns), (window.used_ns, 70_000));
        let gone: Vec<_> = case.monitor.last.as_ref().unwrap().gone.values().copied().collect();
        assert_eq!(gone, [Some(ended_ns)][..usize::from(ended_ns > 0)], "which the next look goes on from");
    }
}

#[test]
fn a_window_waits_for_an_exact_look_but_not_for_long() {
    let mut case = Case::new();
    case.each_ns.store(40_000, Relaxed);
    case.used_ns.fetch_add(25 * MS, Relaxed);
    case.charge(30 * MS as i64);
    assert_eq!(case.tick(), None, "the node ran while it was looked at");
    case.each_ns.store(0, Relaxed);
    assert!(case.tick().is_some());
    case.each_ns.store(40_000, Relaxed);
    case.used_ns.fetch_add(WINDOW_MAX_NS, Relaxed);
    case.charge(WINDOW_MAX_NS as i64);
    assert!(case.tick().is_some());
}

#[test]
fn a_window_closes_early_where_it_is_asked_to() {
    let mut case = Case::new();
    case.used_ns.fetch_add(3 * MS, Relaxed);
    case.charge(MS as i64);
    assert_eq!(case.tick(), None);
    case.monitor.close();
    let window = |charged_ms, escaped_ms| {
        let [charged_ns, escaped_ns] = [charged_ms * MS, escaped_ms * MS];
        Some(Window { charged_ns, escaped_ns, used_ns: charged_ns, ..Window::default() })
    };
    assert_eq!([case.tick(), case.tick_later()], [None, window(3, 2)], "what nobody seems to have charged is doubted");
    case.used_ns.fetch_add(3 * MS, Relaxed);
    assert_eq!(case.tick(), None, "the next is of the usual length");
    case.used_ns.fetch_add(17 * MS, Relaxed);
    case.charge(20 * MS as i64);
    assert_eq!(case.tick(), window(20, 0));
    case.monitor.close();
    assert_eq!([case.tick(), case.tick()], [window(0, 0), None], "where nothing was used too");
}

#[test]
fn a_thread_has_no_meter_if_two_windows_in_a_row_say_so() {
    let mut case = Case::new();
    let unhit = || {
        vec![Unmetered { pid: case.child.id() as i32, tid: case.child.id() as i32, name: String::new(), unhit_ns: 1 }]
    };
    case.monitor.suspect(unhit());
    case.monitor.suspect(Vec::new());
    case.monitor.suspect(unhit());
    assert_eq!(case.monitor.take_unmetered(), []);
    case.monitor.suspect(unhit());
    case.monitor.suspect(unhit());
    let news = case.monitor.take_unmetered();
    assert_eq!((news.len(), news[0].name.as_str()), (1, "sleep"), "once");
}
