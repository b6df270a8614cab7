//! User and system time as a program is to see them, of what the kernel counts of both.

/// CPU time by mode, ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split {
    pub user: u64,
    pub system: u64,
}

impl Split {
    /// So much time in the same parts, ns: all of it in user mode where there was none. The user's is rounded down, and at most
    /// a 2^31st too little for that of each.
    pub fn parts_of(self, ns: u64) -> Split {
        let total = self.user.saturating_add(self.system);
        if total == 0 {
            return Split { user: ns, system: 0 };
        }
        let (mut part, mut whole) = (self.user, total);
        while whole >> 32 != 0 {
            (part, whole) = (part >> 1, whole >> 1);
        }
        let share = (part << 31).checked_div(whole).unwrap_or(0);
        let user = (ns >> 31).saturating_mul(share).saturating_add(((ns & 0x7fff_ffff) * share) >> 31);
        Split { user, system: ns - user.min(ns) }
    }

    /// After this much was shown: neither goes back, and their sum is that of `self` as long as that does not go back either. As the
    /// kernel's own (cputime_adjust).
    pub fn after(self, shown: Split) -> Split {
        let total = self.user.saturating_add(self.system);
        let system = self.system.max(shown.system);
        let user = total.saturating_sub(system);
        if user >= shown.user {
            return Split { user, system };
        }
        Split { user: shown.user, system: total.saturating_sub(shown.user).max(shown.system) }
    }

    /// Without what the meter cost in the kernel.
    pub fn without_kernels(self, ns: u64) -> Split {
        Split { user: self.user, system: self.system.saturating_sub(ns) }
    }
}

/// What of a thread's or process's `cost_ns` of the meter counts as system time, ns, rounded down: half. The other half are the
/// interrupt's way in and a virtual machine's exits, which ticks count as the mode that was interrupted, and code that is colder
/// after hits, which is no mode's own (of hits 0.23 to 0.4 were system time of a loop in user mode, 0.7 to 1 of programs that were
/// in the kernel: nested KVM on an Intel Xeon). No cost, and one below zero (interrupts that are the program's), has none.
pub const fn kernels_of_meter_ns(cost_ns: u64) -> u64 {
    if (cost_ns as i64) < 0 { 0 } else { cost_ns / 2 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(user: u64, system: u64) -> Split {
        Split { user, system }
    }

    #[test]
    fn parts_are_those_of_the_kernel() {
        assert_eq!(split(3, 1).parts_of(400), split(300, 100));
        assert_eq!(split(0, 7).parts_of(400), split(0, 400));
        assert_eq!(split(7, 0).parts_of(400), split(400, 0));
        assert_eq!(split(0, 0).parts_of(400), split(400, 0), "too short to be seen");
        // Three hundred years of each.
        let long = split(1 << 62, 1 << 62).parts_of(u64::MAX);
        assert_eq!(long.user + long.system, u64::MAX);
        assert!(long.user.abs_diff(long.system) < 1 << 34, "{long:?}");
        assert_eq!(split(u64::MAX, u64::MAX).parts_of(0), split(0, 0));
    }

    #[test]
    fn half_of_what_the_meter_costs_is_the_kernels() {
        assert_eq!([0, 1, 100, 5_u64.wrapping_neg()].map(kernels_of_meter_ns), [0, 0, 50, 0]);
        // A loop in user mode, of whose time hits took 67 ms.
        let shown = split(140, 34).without_kernels(kernels_of_meter_ns(67)).parts_of(100_000);
        assert!((99_280..99_300).contains(&shown.user) && shown.user + shown.system == 100_000, "{shown:?}");
        // Ticks met less of it than there was.
        assert_eq!(split(900, 30).without_kernels(65).parts_of(835), split(835, 0));
    }

    #[test]
    fn what_was_shown_never_goes_back_and_adds_up() {
        let shown = split(100, 50);
        assert_eq!(split(110, 60).after(shown), split(110, 60));
        // Ticks say now that less of it was system time: the rest is still to come.
        assert_eq!(split(130, 40).after(shown), split(120, 50));
        assert_eq!(split(90, 80).after(shown), split(100, 70));
        assert_eq!(split(100, 45).after(shown), split(100, 50), "the total itself went back");
        assert_eq!(split(0, 0).after(shown), shown);
        let mut shown = split(0, 0);
        for (user, system) in [(0, 1500), (900, 1450), (2000, 1300), (9000, 200)] {
            shown = split(user, system).after(shown);
            assert_eq!(shown.user + shown.system, user + system);
        }
    }
}
