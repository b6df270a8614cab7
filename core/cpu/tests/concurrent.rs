//! The ledger is shared by threads that charge at once.
#![expect(clippy::disallowed_methods, reason = "the test is about threads; the crate itself has none")]

use std::sync::atomic::{AtomicU64, Ordering};

use diecast_core_cpu::charge;
use diecast_core_vtime::VirtNs;

#[test]
fn concurrent_charges_conserve_work() {
    let ledger = [AtomicU64::new(0)];
    std::thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| {
                for _ in 0..1000 {
                    charge(&ledger, 0, VirtNs(0), VirtNs(0), 7);
                }
            });
        }
    });
    assert_eq!(ledger[0].load(Ordering::Relaxed), 4 * 1000 * 7);
}
