//! Who competes for a node's cores with which weight, kept only in nodes where somebody's is not the usual one.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Threads of a node that are known to compete at one time.
pub const RIVALS_MAX: usize = 256;

/// One of them.
#[repr(C)]
pub struct Rival {
    /// Thread number above, weight below; 0 = free.
    who: AtomicU64,
    /// Virtual instant until which it is taken to compete.
    pub until_v_ns: AtomicU64,
    /// Virtual instant by which its part of a core was enough for what it had done.
    pub due_v_ns: AtomicU64,
    /// CPU time that it was charged by then.
    pub due_charged_ns: AtomicU64,
}

impl Rival {
    /// A row that is free.
    pub const fn free() -> Rival {
        Rival {
            who: AtomicU64::new(0),
            until_v_ns: AtomicU64::new(0),
            due_v_ns: AtomicU64::new(0),
            due_charged_ns: AtomicU64::new(0),
        }
    }

    /// Thread and weight, if it competes at this instant.
    pub fn at(&self, now_v_ns: u64) -> Option<(u32, u32)> {
        let who = self.who.load(Relaxed);
        (who != 0 && self.until_v_ns.load(Relaxed) > now_v_ns).then_some(((who >> 32) as u32, who as u32))
    }
}

/// The row of a thread with this weight, and whether it had one. A new one is free or of a thread whose time was over, and
/// belongs to it until `until_v_ns` at least; none where there is no room.
pub fn compete(rivals: &[Rival], tid: u32, weight: u32, now_v_ns: u64, until_v_ns: u64) -> Option<(&Rival, bool)> {
    let who = u64::from(tid) << 32 | u64::from(weight);
    if let Some(own) = rivals.iter().find(|r| (r.who.load(Relaxed) >> 32) as u32 == tid) {
        own.until_v_ns.fetch_max(until_v_ns, Relaxed);
        own.who.store(who, Relaxed);
        return Some((own, true));
    }
    for r in rivals {
        let old = r.who.load(Relaxed);
        if r.at(now_v_ns).is_none() && r.who.compare_exchange(old, who, Relaxed, Relaxed).is_ok() {
            r.until_v_ns.store(until_v_ns, Relaxed);
            return Some((r, false));
        }
    }
    None
}

/// The row of a thread that has ended is free.
pub(crate) fn forget_rival(rivals: &[Rival], tid: u32) {
    for r in rivals.iter().filter(|r| (r.who.load(Relaxed) >> 32) as u32 == tid) {
        r.who.store(0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_has_one_row_until_its_time_is_over() {
        let rivals = [const { Rival::free() }; 2];
        let known = |tid, weight, now, until| compete(&rivals, tid, weight, now, until).map(|(_, known)| known);
        assert_eq!(known(7, 1024, 100, 200), Some(false));
        assert_eq!(known(8, 15, 100, 150), Some(false));
        assert_eq!(known(9, 3, 100, 300), None);
        let at = |now| rivals.iter().filter_map(|r| r.at(now)).collect::<Vec<_>>();
        assert_eq!(at(120), [(7, 1024), (8, 15)], "no room for a third");
        assert_eq!(known(7, 110, 140, 260), Some(true));
        assert_eq!(known(9, 3, 150, 300), Some(false));
        assert_eq!((at(160), at(260), at(300)), (vec![(7, 110), (9, 3)], vec![(9, 3)], vec![]));
    }
}
