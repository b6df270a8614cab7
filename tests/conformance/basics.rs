//! `diecast frame` as a command: durations, status, input and output, privileges.

use std::time::Duration;

use diecast_quiet::look;
use diecast_tests::cost::Idle;
use diecast_tests::{World, alone, beside, c, run, run_with, value};

fn milliseconds(d: Duration) -> u128 {
    d.as_millis()
}

#[test]
fn sleep_one_second_takes_ten() {
    look(|| {
        let r = run(World::Frame("10"), &["sleep", "1"]);
        assert_eq!(r.status, Some(0), "{}", r.stderr);
        // Starting the frame and the program is real time too: on a loaded machine up to a second.
        assert!((10_000..11_500).contains(&milliseconds(r.real)), "{:?}", r.real);
    });
}

#[test]
fn sleep_one_second_takes_half() {
    look(|| {
        let r = run(World::Frame("0.5"), &["sleep", "1"]);
        assert!((500..800).contains(&milliseconds(r.real)), "{:?}", r.real);
    });
}

#[test]
fn date_goes_on_from_the_hosts_and_then_diverges() {
    look(date);
}

fn date() {
    let script = "date +%s%N; sleep 0.2; date +%s%N";
    let _turn = beside();
    let before = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_nanos();
    let r = run_with(World::Frame("10"), &[], &["sh", "-c", script], b"", &[]);
    let stamps: Vec<u128> = r.lines().iter().map(|(_, l)| l.parse().expect("a number")).collect();
    assert!(stamps[0] >= before && stamps[0] < before + r.real.as_nanos(), "starts with the host's time");
    let passed = stamps[1] - stamps[0];
    assert!((200_000_000..280_000_000).contains(&passed), "{passed} ns virtual");
    assert!(r.real >= Duration::from_secs(2), "{:?}", r.real);
}

/// One CPU second at speed 1 is one second of the program's own clock, whatever signals it blocks and ignores; smaller here to be
/// quick.
#[test]
fn a_busy_program_sees_its_cpu_time_pass() {
    look(busy_program);
}

fn busy_program() {
    let _turn = alone();
    let guest = c("busy", false);
    for (speed, factor, how) in [("1", 1.0, "usual"), ("1", 1.0, "deaf"), ("0.5", 2.0, "usual")] {
        let mut off = Vec::new();
        for _ in 0..3 {
            let r = run_with(World::Frame("10"), &["--speed", speed], &[&guest, "150", how], b"", &[]);
            // The guest's fixed work natively, just before or after: the host's speed changes by the minute.
            let native = run_with(World::Native, &[], &[&guest, "150", how], b"", &[]);
            let ratio = value(&r.lines(), "wall") as f64 / (value(&native.lines(), "cpu") as f64 * factor);
            off.push((ratio - 1.0).abs());
        }
        let best = off.iter().copied().fold(f64::MAX, f64::min);
        assert!(best < 0.10, "speed {speed}, {how}: off by {off:?}");
    }
}

#[test]
fn status_and_signals_pass_through() {
    for (script, status) in [("exit 0", 0), ("exit 42", 42), ("kill -TERM $$", 143), ("kill -SEGV $$", 139)] {
        for world in [World::Frame("1"), World::Frame("10")] {
            assert_eq!(run(world, &["sh", "-c", script]).status, Some(status), "{script} in {world:?}");
        }
    }
}

#[test]
fn input_and_output_pass_through() {
    let _turn = beside();
    let bytes: Vec<u8> = (0..17 * 12_000u32).map(|i| b"0123456789abcdef\n"[(i % 17) as usize]).collect();
    let r = run_with(World::Frame("1"), &[], &["cat"], &bytes, &[]);
    assert_eq!(r.text().as_bytes(), &bytes[..], "12,000 lines");
    let r =
        run_with(World::Frame("1"), &[], &["sh", "-c", "echo out; echo err >&2; echo $WORD"], b"", &[("WORD", "w")]);
    assert_eq!((r.text().as_str(), r.stderr.as_str()), ("out\nw\n", "err\n"));
}

#[test]
fn refusals_of_the_host_are_exit_3() {
    let _turn = beside();
    let r = run_with(World::Frame("1"), &["--speed", "2"], &["true"], b"", &[]);
    assert_eq!(r.status, Some(3), "{}", r.stderr);
    assert!(r.stderr.contains("more than a whole core"), "{}", r.stderr);
    let r = run_with(World::Frame("1"), &[], &["/nowhere/at/all"], b"", &[]);
    assert_eq!(r.status, Some(127), "as a shell reports a missing command");
    assert!(r.stderr.contains("/nowhere/at/all"), "{}", r.stderr);
}

/// A 32-bit program: two bytes of header are enough for the kernel to take it for one.
#[test]
fn a_32_bit_program_is_refused_clearly() {
    let mut elf = vec![0u8; 0x100];
    elf[..7].copy_from_slice(b"\x7fELF\x01\x01\x01");
    let mut put = |at: usize, bytes: &[u8]| elf[at..at + bytes.len()].copy_from_slice(bytes);
    // ET_EXEC, EM_386, version, entry, program headers at 52, one of 32 bytes.
    put(16, &[2, 0, 3, 0, 1, 0, 0, 0, 0x80, 0x80, 0x04, 0x08, 52]);
    put(40, &[52, 0, 32, 0, 1, 0]);
    // PT_LOAD of the whole file at 0x08048000, readable and executable.
    put(
        52,
        &[
            1, 0, 0, 0, 0, 0, 0, 0, 0, 0x80, 0x04, 0x08, 0, 0x80, 0x04, 0x08, 0, 1, 0, 0, 0, 1, 0, 0, 5, 0, 0, 0, 0,
            0x10,
        ],
    );
    // mov $1, %eax; xor %ebx, %ebx; int $0x80
    put(0x80, &[0xb8, 1, 0, 0, 0, 0x31, 0xdb, 0xcd, 0x80]);
    let path = std::env::temp_dir().join(format!("diecast-elf32-{}", std::process::id()));
    std::fs::write(&path, &elf).expect("writes");
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("permits");
    let program = path.to_string_lossy().into_owned();
    // Through a shell, so that the exec is one of a framed program.
    let _turn = beside();
    let r = run_with(
        World::Frame("1"),
        &[],
        &["sh", "-c", &format!("{program}; s=$?; sleep 0.2; echo status $s")],
        b"",
        &[],
    );
    let native =
        run_with(World::Native, &[], &["sh", "-c", &format!("{program}; s=$?; sleep 0.2; echo status $s")], b"", &[]);
    std::fs::remove_file(&path).expect("removes");
    if !native.text().contains("status 0") {
        diecast_quiet::skipped(format_args!("this kernel does not run 32-bit programs at all: {}", native.text()));
        return;
    }
    assert!(!r.text().contains("status 0"), "it ran: {}", r.text());
    assert!(r.stderr.contains("32-bit"), "{}", r.stderr);
}

#[test]
fn an_unprivileged_user_can_use_frames() {
    let program = diecast_tests::diecast().to_string_lossy().into_owned();
    let as_nobody = ["--reuid", "65534", "--regid", "65534", "--clear-groups"];
    let script = "cat /proc/self/status | grep -c '^Uid:.65534'; sleep 0.05; date +%s%N; sleep 0.1; date +%s%N";
    let mut command = vec!["setpriv"];
    command.extend(as_nobody);
    command.extend([program.as_str(), "frame", "--tdf", "10", "--", "sh", "-c", script]);
    let probe = run_with(
        World::Native,
        &[],
        &["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", &program, "--version"],
        b"",
        &[],
    );
    if probe.status != Some(0) {
        diecast_quiet::skipped(format_args!("setpriv can't run the program as nobody: {}", probe.stderr));
        return;
    }
    look(|| {
        let _turn = beside();
        let r = run_with(World::Native, &[], &command, b"", &[]);
        assert_eq!(r.status, Some(0), "{}", r.stderr);
        let lines = r.lines();
        assert_eq!(lines[0].1, "1");
        let at = |i: usize| lines[i].1.parse::<u64>().expect("a number");
        let passed = at(2) - at(1);
        assert!((100_000_000..200_000_000).contains(&passed), "{passed} ns virtual");
        assert!(r.real >= Duration::from_millis(1500), "{:?}", r.real);
    });
}

/// What admits a filter is the capability, not the user: root in a container often lacks it.
#[test]
fn root_without_cap_sys_admin_can_use_frames() {
    let _turn = beside();
    let program = diecast_tests::diecast().to_string_lossy().into_owned();
    let without = ["setpriv", "--bounding-set", "-sys_admin"];
    let mut probe = without.to_vec();
    probe.extend(["sh", "-c", "id -u; grep NoNewPrivs /proc/self/status"]);
    let alone = run_with(World::Native, &[], &probe, b"", &[]);
    if !alone.text().starts_with("0\n") {
        diecast_quiet::skipped(format_args!(
            "setpriv can't drop the capability of root: {}{}",
            alone.text(),
            alone.stderr
        ));
        return;
    }
    let framed = |prefix: &[&str]| {
        let mut command = prefix.to_vec();
        command.extend([&program, "frame", "--tdf", "10", "--", "sh", "-c"]);
        command.push("sleep 0.1; id -u; grep NoNewPrivs /proc/self/status");
        let r = run_with(World::Native, &[], &command, b"", &[]);
        assert_eq!(r.status, Some(0), "{prefix:?}: {}", r.stderr);
        assert!(r.real >= Duration::from_secs(1), "{prefix:?}: {:?}", r.real);
        r.text()
    };
    assert_eq!(framed(&without), "0\nNoNewPrivs:\t1\n", "the kernel asks for it");
    assert_eq!(framed(&[]), "0\nNoNewPrivs:\t0\n", "root keeps what it has");
}

/// Waits that nothing ends must not spin. What a trap costs is in `cost`; here it is the whole wake-up, under a meter
/// against a native wait of the same real length. The bar of 3 us is a benchmark's (`make bench-frame`); any spinning would
/// take far more than this one's.
#[test]
fn idle_waits_do_not_spin() {
    look(idle_waits);
}

fn idle_waits() {
    let _turn = alone();
    for tdf in ["1", "3"] {
        let idle = Idle::measure(6, tdf);
        println!("idle waits: {idle:?}");
        assert!(idle.added_ns() <= 30_000, "{idle:?}");
    }
}

/// What a program inherits of signals is what the caller of `diecast frame` had.
#[test]
fn signals_are_inherited_as_without_a_frame() {
    let _turn = beside();
    let program = diecast_tests::diecast().to_string_lossy().into_owned();
    // 32 and 33 are the C library's own.
    const KNOWN: u64 = !(3 << 31);
    for prefix in [&["env"][..], &["env", "--ignore-signal=INT,HUP", "--block-signal=USR1,WINCH"]] {
        let masks = |frame: &[&str]| -> Vec<u64> {
            let command = [prefix, frame, &["grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"]].concat();
            let r = run_with(World::Native, &[], &command, b"", &[]);
            assert_eq!(r.status, Some(0), "{command:?}: {}", r.stderr);
            let mask = |line: &str| u64::from_str_radix(line.rsplit('\t').next().unwrap_or(""), 16).expect("a mask");
            r.lines().iter().map(|(_, line)| mask(line) & KNOWN).collect()
        };
        assert_eq!(masks(&[&program, "frame", "--tdf", "1", "--"]), masks(&[]), "{prefix:?}");
    }
}
