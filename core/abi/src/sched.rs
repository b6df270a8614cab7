//! How threads are scheduled in the node's terms: which of the node's cores they ask for, and real-time policies.
//!
//! Different settings are kept once each, in a table that only grows; threads carry an index into it, which they
//! inherit. What one thread sets for another waits here until that one takes it.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Different settings of a node; index 0 is that of a thread that never asked for any.
pub const SETTINGS_MAX: usize = 4096;
/// Settings that wait for their threads at one time.
pub const WAITING_MAX: usize = 512;

/// What a thread asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Setting {
    /// Bits of the node's cores; 0 for all of them.
    pub cores: u64,
    /// SCHED_FIFO or SCHED_RR; 0 for the policy that the kernel knows.
    pub policy: u8,
    pub priority: u8,
    /// The one thread that has the policy, where its children shall not; else 0.
    pub owner: u32,
}

const READY: u64 = 1 << 63;
const BUSY: u64 = 1 << 62;

impl Setting {
    fn word(&self) -> u64 {
        READY | u64::from(self.owner) << 16 | u64::from(self.priority) << 8 | u64::from(self.policy)
    }

    fn of_words(cores: u64, word: u64) -> Setting {
        Setting { cores, policy: word as u8, priority: (word >> 8) as u8, owner: (word >> 16) as u32 }
    }

    /// As the thread with this number has it.
    pub fn for_thread(self, tid: u32) -> Setting {
        if self.owner == 0 || self.owner == tid { self } else { Setting { cores: self.cores, ..Setting::default() } }
    }
}

/// One row of the table.
#[repr(C)]
pub struct SettingCell {
    cores: AtomicU64,
    word: AtomicU64,
}

/// The tables in a node's page; all zero at first.
#[repr(C)]
pub struct SchedTable {
    /// How many settings wait.
    waiting_count: AtomicU32,
    /// 1 once any thread has a setting.
    used: AtomicU32,
    /// Thread number above, index below; 0 = free.
    waiting: [AtomicU64; WAITING_MAX],
    settings: [SettingCell; SETTINGS_MAX],
}

impl SchedTable {
    /// Whether any thread ever asked for anything.
    #[inline(always)]
    pub fn used(&self) -> bool {
        self.used.load(Ordering::Relaxed) != 0
    }

    /// The setting of an index that a thread carries; an index that is none of ours is the default.
    pub fn get(&self, index: u32) -> Setting {
        let Some(cell) = self.settings.get(index as usize).filter(|_| index != 0) else { return Setting::default() };
        let word = cell.word.load(Ordering::Acquire);
        if word & READY == 0 { Setting::default() } else { Setting::of_words(cell.cores.load(Ordering::Relaxed), word) }
    }

    /// The index of a setting, made if there is none. None when the table is full.
    pub fn index_of(&self, setting: Setting) -> Option<u32> {
        if setting == Setting::default() {
            return Some(0);
        }
        self.used.store(1, Ordering::Relaxed);
        for (i, cell) in self.settings.iter().enumerate().skip(1) {
            let mut word = cell.word.load(Ordering::Acquire);
            if word == 0 {
                match cell.word.compare_exchange(0, BUSY, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => {
                        cell.cores.store(setting.cores, Ordering::Relaxed);
                        cell.word.store(setting.word(), Ordering::Release);
                        return Some(i as u32);
                    }
                    Err(now) => word = now,
                }
            }
            // Somebody writes it just now; one that died doing so costs a row.
            for _ in 0..1000 {
                if word != BUSY {
                    break;
                }
                core::hint::spin_loop();
                word = cell.word.load(Ordering::Acquire);
            }
            if word == setting.word() && cell.cores.load(Ordering::Relaxed) == setting.cores {
                return Some(i as u32);
            }
        }
        None
    }

    /// Leaves an index for a thread, in place of one that waits for it already. `alive` tells whose can be thrown away.
    /// False when too many wait.
    pub fn leave(&self, tid: u32, index: u32, alive: impl Fn(u32) -> bool) -> bool {
        let word = u64::from(tid) << 32 | u64::from(index);
        for cell in &self.waiting {
            let old = cell.load(Ordering::Acquire);
            if (old >> 32) as u32 == tid
                && cell.compare_exchange(old, word, Ordering::AcqRel, Ordering::Acquire).is_ok()
            {
                return true;
            }
        }
        // Counted first: whoever sees the count looks, whoever looks too early looks again.
        self.waiting_count.fetch_add(1, Ordering::AcqRel);
        for cell in &self.waiting {
            if cell.compare_exchange(0, word, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                return true;
            }
        }
        self.waiting_count.fetch_sub(1, Ordering::AcqRel);
        for cell in &self.waiting {
            let old = cell.load(Ordering::Acquire);
            if old != 0
                && !alive((old >> 32) as u32)
                && cell.compare_exchange(old, word, Ordering::AcqRel, Ordering::Acquire).is_ok()
            {
                return true;
            }
        }
        false
    }

    /// What waits for a thread.
    pub fn waits_for(&self, tid: u32) -> Option<u32> {
        if self.waiting_count.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.waiting.iter().map(|c| c.load(Ordering::Acquire)).find(|w| (w >> 32) as u32 == tid).map(|w| w as u32)
    }

    /// Whether anything waits for anybody.
    #[inline(always)]
    pub fn any_waits(&self) -> bool {
        self.waiting_count.load(Ordering::Acquire) != 0
    }

    /// Takes what waits for a thread.
    pub fn take(&self, tid: u32) -> Option<u32> {
        for cell in &self.waiting {
            let old = cell.load(Ordering::Acquire);
            if (old >> 32) as u32 == tid && cell.compare_exchange(old, 0, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                self.waiting_count.fetch_sub(1, Ordering::AcqRel);
                return Some(old as u32);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Box<SchedTable> {
        Box::new(SchedTable {
            waiting_count: AtomicU32::new(0),
            used: AtomicU32::new(0),
            waiting: [const { AtomicU64::new(0) }; WAITING_MAX],
            settings: [const { SettingCell { cores: AtomicU64::new(0), word: AtomicU64::new(0) } }; SETTINGS_MAX],
        })
    }

    #[test]
    fn a_setting_has_one_index_and_comes_back_as_it_was() {
        let t = table();
        assert_eq!(t.index_of(Setting::default()), Some(0));
        assert!(!t.used());
        let rt = Setting { cores: 5, policy: 2, priority: 99, owner: u32::MAX };
        let pinned = Setting { cores: 1 << 63, ..Setting::default() };
        assert_eq!([t.index_of(rt), t.index_of(pinned), t.index_of(rt)], [Some(1), Some(2), Some(1)]);
        assert_eq!((t.get(1), t.get(2)), (rt, pinned));
        assert_eq!([t.get(0), t.get(3), t.get(1 << 20)], [Setting::default(); 3]);
        assert_eq!(rt.for_thread(u32::MAX), rt);
        assert_eq!(rt.for_thread(1), Setting { cores: 5, ..Setting::default() });
        for i in 1..SETTINGS_MAX as u64 {
            t.index_of(Setting { cores: i << 8, ..Setting::default() });
        }
        assert_eq!(t.index_of(Setting { cores: 3, ..Setting::default() }), None);
    }

    #[test]
    fn what_waits_is_taken_once_by_its_thread() {
        let t = table();
        assert!(t.leave(7, 3, |_| true) && t.leave(7, 4, |_| true) && t.leave(8, 5, |_| true));
        assert_eq!((t.waits_for(7), t.waits_for(9)), (Some(4), None));
        assert_eq!((t.take(7), t.take(7), t.take(8)), (Some(4), None, Some(5)));
        assert!(!t.any_waits());
        for tid in 100..100 + WAITING_MAX as u32 {
            assert!(t.leave(tid, 1, |_| true));
        }
        assert!(!t.leave(1, 1, |_| true));
        assert!(t.leave(1, 2, |tid| tid != 140));
        assert_eq!((t.take(1), t.take(140)), (Some(2), None));
    }
}
