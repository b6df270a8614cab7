use super::*;

const BLOB: (u64, u64) = (0x7e90_0000_0000, 0x7e90_000f_ffff);
const ARCH: u32 = 0xc000_003e;
const ALLOW: u32 = 0x7fff_0000;
const TRAP: u32 = 0x0003_d1ec;

fn verdict(nr: u32, ip: u64, args: [u64; 6]) -> (u32, bool) {
    let code = filter(BLOB, 0xd1ec);
    evaluate(&code, &SeccompData { nr, arch: ARCH, ip, args }).expect("the filter ends in a verdict")
}

#[test]
fn rows_are_sorted_and_named_once() {
    for w in ROWS.windows(2) {
        assert!(w[0].nr < w[1].nr, "{} before {}", w[0].name, w[1].name);
    }
}

#[test]
fn numbers_without_a_row_are_allowed_without_looking_at_arguments() {
    for nr in 0..470 {
        if ROWS.iter().all(|r| r.nr != nr) {
            assert_eq!(verdict(nr, 1, [7; 6]), (ALLOW, false), "nr {nr}");
        }
    }
}

#[test]
fn every_trapped_call_passes_from_inside_the_blob() {
    for r in ROWS {
        if let Action::Trap(_) = r.action {
            for ip in [BLOB.0, BLOB.0 + 0x1234, BLOB.1] {
                assert_eq!(verdict(r.nr, ip, [u64::MAX; 6]).0, ALLOW, "{}", r.name);
            }
            for ip in [BLOB.0 - 1, BLOB.1 + 1, BLOB.0 + (1 << 32)] {
                let args = match r.nr {
                    nr::FUTEX | nr::PRLIMIT64 => [1, 0, 0, 1, 0, 0],
                    nr::SETRLIMIT | nr::GETRLIMIT => [0, 1, 0, 0, 0, 0],
                    nr::PRCTL => [29, 0, 0, 0, 0, 0],
                    nr::IOCTL => [1, 0x8906, 0, 0, 0, 0],
                    nr::SHMCTL | nr::MSGCTL => [1, 2, 0, 0, 0, 0],
                    nr::OPEN | nr::OPENAT => [1, 0, 0, 1, 1, 1],
                    nr::LSEEK => [3, 0, 0, 1, 1, 1],
                    nr::KEYCTL => [15, 1, 1, 0, 0, 0],
                    nr::UNSHARE => [0x4000_0080, 0, 0, 0, 0, 0],
                    nr::SETNS => [1, 0x4000_0080, 0, 0, 0, 0],
                    nr::SEMCTL => [1, 0, 2, 0, 0, 0],
                    nr::TKILL => [1, 5, 0, 0, 0, 0],
                    nr::TGKILL => [1, 1, 5, 0, 0, 0],
                    _ => [1, 1, 20, 1, 1, 1],
                };
                let trapped = verdict(r.nr, ip, args).0;
                assert_eq!(trapped, TRAP, "{} at {ip:x}", r.name);
            }
        }
    }
}

#[test]
fn who_looks_for_more_pays_first() {
    for timeout in [0, 1, u64::MAX] {
        assert_eq!(verdict(nr::EPOLL_WAIT, 1, [3, 1, 1, timeout, 0, 0]).0, TRAP, "epoll_wait {timeout}");
    }
    assert_eq!(verdict(nr::EPOLL_PWAIT2, 1, [3, 1, 1, 0, 0, 8]).0, TRAP, "epoll_pwait2 without a timeout");
}

#[test]
fn common_cases_never_trap() {
    let high = 0x1234_5678_0000_0000;
    assert_eq!(verdict(nr::POLL, 1, [1, 1, u64::from(u32::MAX), 0, 0, 0]).0, ALLOW, "poll -1");
    assert_eq!(verdict(nr::POLL, 1, [1, 1, high, 0, 0, 0]).0, ALLOW, "poll 0 with rubbish above");
    assert_eq!(verdict(nr::POLL, 1, [1, 1, high | 10, 0, 0, 0]).0, TRAP, "poll 10 with rubbish above");
    assert_eq!(verdict(nr::EPOLL_PWAIT, 1, [3, 1, 1, u64::MAX, 0, 8]).0, ALLOW);
    assert_eq!(verdict(nr::EPOLL_PWAIT, 1, [3, 1, 1, u64::MAX, 9, 8]).0, TRAP);
    assert_eq!(verdict(nr::FUTEX, 1, [1, 128, 1, 0, 0, 0]).0, ALLOW, "futex wait, no timeout");
    assert_eq!(verdict(nr::FUTEX, 1, [1, 129, 1, 5, 0, 0]).0, ALLOW, "futex wake, a3 is a number");
    assert_eq!(verdict(nr::FUTEX, 1, [1, 128, 2, 0, 0, 0]).0, TRAP, "a contended lock");
    assert_eq!(verdict(nr::FUTEX, 1, [1, 0x89, 2, 0, 0, u64::MAX]).0, TRAP, "another's");
    assert_eq!(verdict(nr::FUTEX, 1, [1, 129, 2, 0, 0, 0]).0, ALLOW, "futex wake of two");
    assert_eq!(verdict(nr::FUTEX, 1, [1, 0x89, 1, 0, 0, u64::MAX]).0, ALLOW, "bitset, no timeout");
    assert_eq!(verdict(nr::FUTEX, 1, [1, 128, 1, 1 << 40, 0, 0]).0, TRAP, "only the high half set");
    assert_eq!(verdict(nr::FUTEX, 1, [1, 0x189, 1, 5, 0, 0]).0, TRAP, "bitset, private, realtime");
    assert_eq!(verdict(nr::PPOLL, 1, [1, 1, 0, 0, 8, 0]).0, ALLOW);
    assert_eq!(verdict(nr::SETSOCKOPT, 1, [3, 6, 20, 1, 4, 0]).0, ALLOW, "another level");
    assert_eq!(verdict(nr::SETSOCKOPT, 1, [3, 1, 9, 1, 4, 0]).0, ALLOW, "SO_KEEPALIVE, not TCP_DEFER_ACCEPT");
    assert_eq!(verdict(nr::SETSOCKOPT, 1, [3, 6, 9, 1, 4, 0]).0, TRAP, "TCP_DEFER_ACCEPT");
    assert_eq!(verdict(nr::SETSOCKOPT, 1, [3, 6, 1, 1, 4, 0]).0, ALLOW, "TCP_NODELAY");
    assert_eq!(verdict(nr::SETSOCKOPT, 1, [3, 41, 20, 1, 4, 0]).0, ALLOW, "IPv6");
    assert_eq!(verdict(nr::GETSOCKOPT, 1, [3, 1, 4, 1, 4, 0]).0, ALLOW, "SO_ERROR, not TCP_KEEPIDLE");
    assert_eq!(verdict(nr::GETSOCKOPT, 1, [3, 6, 11, 1, 4, 0]).0, TRAP, "TCP_INFO");
    assert_eq!(verdict(nr::SETSOCKOPT, 1, [3, 40, 2, 1, 8, 0]).0, ALLOW, "a vsock's buffer");
    assert_eq!(verdict(nr::SETSOCKOPT, 1, [3, 40, 8, 1, 16, 0]).0, TRAP, "a vsock's connect timeout");
    assert_eq!(verdict(nr::UNSHARE, 1, [0x400, 0, 0, 0, 0, 0]).0, ALLOW, "of files");
    assert_eq!(verdict(nr::SETNS, 1, [3, 0x4000_0000, 0, 0, 0, 0]).0, ALLOW, "into a network");
    assert_eq!(verdict(nr::SETNS, 1, [3, 0, 0, 0, 0, 0]).0, TRAP, "into anything");
    assert_eq!(verdict(nr::TGKILL, 1, [1, 1, 10, 0, 0, 0]).0, ALLOW, "another signal than SIGTRAP");
    assert_eq!(verdict(nr::KEYCTL, 1, [11, 1, 1, 1, 0, 0]).0, ALLOW, "KEYCTL_READ");
    assert_eq!(verdict(nr::PRCTL, 1, [15, 1, 0, 0, 0, 0]).0, ALLOW, "PR_SET_NAME");
    assert_eq!(verdict(nr::WAIT4, 1, [u64::MAX, 1, 0, 0, 0, 0]).0, ALLOW, "no usage");
    assert_eq!(verdict(nr::SETSOCKOPT, 1, [3, 1, 66, 1, 16, 0]).0, TRAP);
    for (flags, expected) in [(0, TRAP), (0o2000000, TRAP), (1, ALLOW), (2, ALLOW), (0o100, ALLOW), (0o200000, ALLOW)] {
        assert_eq!(verdict(nr::OPENAT, 1, [3, 1, flags, 0, 0, 0]).0, expected, "openat with {flags:o}");
    }
    assert_eq!(verdict(nr::LSEEK, 1, [3, 8, 0, 0, 0, 0]).0, ALLOW, "not to the beginning");
    assert_eq!(verdict(nr::LSEEK, 1, [3, 0, 2, 0, 0, 0]).0, ALLOW, "to the end");
}

#[test]
fn other_architectures_and_x32_are_refused() {
    let code = filter(BLOB, 0xd1ec);
    let data = SeccompData { nr: 13, arch: 0x4000_0003, ip: 1, args: [0; 6] };
    assert_eq!(evaluate(&code, &data).unwrap().0, 0x8000_0000);
    assert_eq!(verdict(0x4000_0000 | 228, 1, [0; 6]).0, 0x0005_0026);
}

#[test]
fn fits_the_kernels_limit() {
    assert!(filter(BLOB, 1).len() < 4096);
}

/// What the blob asks of a call that comes by a jump is what the filter asks: over arguments that hold each constant of
/// the table, and their neighbours, in every register.
#[test]
fn a_jump_asks_what_the_filter_asks() {
    let mut words = vec![0, 1, 2, u64::from(u32::MAX), u64::MAX, 1 << 31, 1 << 40, 0x1234_5678_0000_0000];
    let (mut tests, mut names) = (Vec::<Test>::new(), Vec::<u32>::new());
    for row in ROWS {
        match row.action {
            Action::Trap(When::Any(t) | When::All(t)) => tests.extend(t),
            Action::Trap(When::EitherAnd(t, also)) => {
                tests.extend(t);
                tests.push(also);
            }
            Action::Trap(When::Options(levels)) => {
                names.extend(levels.iter().flat_map(|(l, n)| [&[*l][..], n].concat()))
            }
            _ => {}
        }
    }
    names.extend(tests.iter().flat_map(|t| if let Test::LowIn { values, .. } = t { *values } else { &[] }));
    words.extend(
        names
            .iter()
            .flat_map(|n| [u64::from(*n), u64::from(*n) | 0x80, u64::from(*n) | 0x100, 1 << 32 | u64::from(*n)]),
    );
    let (mut state, mut seen) = (1u64, [0u32; 2]);
    let mut next = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as usize % below
    };
    let code = filter(BLOB, 0xd1ec);
    for nr in BY_JUMP {
        for _ in 0..20_000 {
            let args: [u64; 6] = std::array::from_fn(|_| words[next(words.len())]);
            let filters = evaluate(&code, &SeccompData { nr: *nr, arch: ARCH, ip: 1, args }).unwrap().0 == TRAP;
            assert_eq!(comes_by_jump(*nr, &args), Some(filters), "{nr} with {args:x?}");
            seen[usize::from(filters)] += 1;
        }
    }
    assert!(seen.iter().all(|n| *n > 50_000), "both kinds were met: {seen:?}");
    assert_eq!(comes_by_jump(nr::CLONE3, &[0; 6]), None);
}
