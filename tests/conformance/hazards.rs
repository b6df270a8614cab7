//! What programs do that could collide with a handler, a blob and a meter inside of them.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use diecast_core_abi::{
    ALT_ADDR, ALT_LEN, ALT_SLOTS, BLOB_ADDR, BLOB_LEN_MAX, NODE_PAGE_ADDR, PROC_PAGE_ADDR, PROC_PAGE_LEN,
};
use diecast_tests::{
    FRAMES, World, beside, c, c_with, conforms, cxx, musl, run, run_with, target_dir, tool, value, values,
};

/// One unmetered frame and a metered one.
const TWO: [World; 2] = [World::Frame("1"), World::Frame("10")];

#[test]
fn vector_and_tile_registers_survive_traps_and_hits() {
    conforms(&[&c("state", false)], &TWO);
}

#[test]
fn seccomp_filters_of_the_programs_own() {
    conforms(&[&c("filters", false)], &FRAMES);
}

/// Registers, flags, red zone and results of calls at places that jump to the blob, from their first call on and while they
/// change under several threads, handlers and children; what only looks like a call's instruction; a breakpoint of the
/// program's at one; a filter that comes later.
#[test]
fn places_that_jump_to_the_blob_are_as_without() {
    let guest = c("sites", false);
    conforms(&[&guest], &[World::Frame("1"), World::Staying("1"), World::Frame("10")]);
    let jumps =
        |world, options: &[&str]| value(&run_with(world, options, &[&guest, "jumps"], b"", &[]).lines(), "jumps");
    let _turn = beside();
    let seen = (
        jumps(World::Native, &[]),
        jumps(World::Frame("1"), &["--call-sites", "never"]),
        jumps(World::Frame("1"), &["--call-sites", "102"]),
    );
    assert_eq!(seen, (0, 0, 0), "left alone");
    assert_eq!((jumps(World::Frame("1"), &[]), jumps(World::Frame("10"), &[])), (64, 64));
}

/// `--tsc trap`: rdtsc tells virtual time, at the rate of the processor's, and SIGSEGV, by which it comes, stays the
/// program's own.
#[test]
fn a_trapped_tsc_tells_virtual_time_and_sigsegv_stays_the_programs() {
    let worlds = [World::Trapped("1"), World::Trapped("10"), World::Trapped("0.5")];
    let guest = c("tsc", false);
    conforms(&[&guest], &worlds[..2]);
    conforms(&[&c("tsc", true)], &[World::Trapped("4")]);
    for other in ["signals", "blocked"] {
        conforms(&[&c(other, false)], &[World::Trapped("4")]);
    }
    // What a program asks for itself works where nothing is trapped too.
    conforms(&[&guest], &TWO[1..]);
    diecast_quiet::look(|| {
        let rates = |world| values(&run(world, &[&guest]).lines(), "ticks_per_ms");
        let native = rates(World::Native);
        assert_eq!(native.len(), 4);
        for (world, factor) in worlds.map(|w| (w, 1.0)).into_iter().chain([(World::Frame("10"), 10.0)]) {
            for (native, framed) in native.iter().zip(rates(world)) {
                let ratio = framed as f64 / (*native as f64 * factor);
                assert!((0.997..=1.003).contains(&ratio), "{world:?}: {framed} ticks a ms, natively {native}");
            }
        }
    });
}

/// Where the kernel has mseal.
#[test]
fn what_is_the_frames_in_a_process_stays_there() {
    let parts = [
        ("blob", BLOB_ADDR, BLOB_LEN_MAX),
        ("blobs_first", BLOB_ADDR, 4096),
        ("node", NODE_PAGE_ADDR, 4096),
        ("process", PROC_PAGE_ADDR, PROC_PAGE_LEN),
        ("alternate", ALT_ADDR, ALT_LEN * ALT_SLOTS as u64),
    ];
    let numbers = parts.map(|(name, at, len)| [name.to_owned(), at.to_string(), len.to_string()]);
    let guest = c("seals", false);
    let command: Vec<&str> = std::iter::once(&*guest).chain(numbers.iter().flatten().map(|w| &**w)).collect();
    for world in TWO {
        let r = run(world, &command);
        let lines = r.lines();
        if value(&lines, "mseal") != 0 {
            return diecast_quiet::skipped("this kernel has no mseal");
        }
        for name in parts.iter().map(|p| p.0).chain(["kernels_vdso"]) {
            for way in ["munmap", "mmap", "mprotect"] {
                let key = format!("{name}.{way}");
                let (got, status) = (value(&lines, &key), value(&lines, &format!("{key}.status")));
                // Where pages are missing in between, ENOMEM is as good.
                assert!((got == -1 || way == "mprotect" && got == -12) && status == 0, "{world:?}: {}", r.text());
            }
        }
    }
}

#[test]
fn the_vdso_has_the_kernels_getrandom() {
    conforms(&[&c("random", false)], &TWO);
}

/// The kernel has one listener in a chain of filters, and it is ours: a clear error, and everything else works.
#[test]
fn a_second_listener_is_refused() {
    let Some(python) = tool("python3") else { return diecast_quiet::skipped("python3 is not installed") };
    let script = "import ctypes, struct\n\
        libc = ctypes.CDLL(None, use_errno=True)\n\
        allow = ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, 0x7fff0000))\n\
        program = ctypes.create_string_buffer(struct.pack('HxxxxxxQ', 1, ctypes.addressof(allow)))\n\
        libc.prctl(38, 1, 0, 0, 0)\n\
        r = libc.syscall(317, 1, 8, program)\n\
        print('listener', r if r < 0 else 'fd', ctypes.get_errno())";
    let native = run(World::Native, &[&python, "-c", script]);
    assert_eq!(native.text(), "listener fd 0\n", "{}", native.stderr);
    let framed = run(World::Frame("1"), &[&python, "-c", script]);
    assert_eq!(framed.text(), "listener -1 16\n", "EBUSY: {}", framed.stderr);
}

/// What musl and newer versions of glibc do with threads, children and cancellation, by the calls that they make.
#[test]
fn threads_and_children_of_other_c_libraries() {
    conforms(&[&c("threads", false)], &FRAMES);
    conforms(&[&c("library", false)], &[World::Frame("1"), World::Frame("4")]);
}

/// The same by musl itself, and others of the guests with it.
#[test]
fn programs_of_musl() {
    let Some(library) = musl("library") else { return diecast_quiet::skipped("musl-gcc is not installed") };
    conforms(&[&library], &[World::Frame("1"), World::Frame("4")]);
    for other in ["processes", "signals", "altstacks"] {
        conforms(&[&musl(other).expect("as the first")], &[World::Frame("4")]);
    }
}

/// The unwinder finds its way through the blob and out of a trapped call.
#[test]
fn exceptions_out_of_handlers_and_cancelled_threads_run_destructors() {
    let Some(guest) = cxx("unwind") else { return diecast_quiet::skipped("c++ is not installed") };
    conforms(&[&guest], &FRAMES);
}

#[test]
fn sanitized_programs() {
    for (sanitizer, name, tdf) in
        [("address", "sockets", "4"), ("undefined", "sockets", "4"), ("thread", "stamps", "2")]
    {
        let flag = format!("-fsanitize={sanitizer}");
        let Some(guest) = c_with(name, sanitizer, &[&flag]) else {
            diecast_quiet::skipped(format_args!("{sanitizer}: this compiler lacks it"));
            continue;
        };
        // At its end ASan would look for leaks by ptrace, and the frame says what is traced.
        let command = ["env", "ASAN_OPTIONS=detect_leaks=0", &guest];
        let native = run(World::Native, &command);
        if native.status != Some(0) {
            diecast_quiet::skipped(format_args!("{sanitizer} does not run natively here: {}", native.stderr));
            continue;
        }
        conforms(&command, &[World::Frame(tdf)]);
    }
}

/// Files with the set-user-ID bit, to nobody: the filter of a frame does not take it away.
#[test]
fn setuid_programs_change_user() {
    let _turn = beside();
    // SAFETY: cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return diecast_quiet::skipped("needs root");
    }
    let dir = std::env::temp_dir().join(format!("diecast-setuid-{}", std::process::id()));
    std::fs::create_dir(&dir).expect("a folder");
    std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o755)).expect("permits");
    let set = |from: &str, name: &str| {
        let to = dir.join(name);
        std::fs::copy(from, &to).expect("copies");
        std::os::unix::fs::chown(&to, Some(65534), Some(65534)).expect("owns");
        std::fs::set_permissions(&to, PermissionsExt::from_mode(0o4755)).expect("permits");
        to.to_string_lossy().into_owned()
    };
    let id = set(&tool("id").expect("coreutils"), "id");
    let pace = set(&c("processes", true), "pace");
    let script = format!("{id} -u; {id} -ur; exec {pace} pace setuid");
    let native = run_with(World::Native, &[], &["sh", "-c", &script], b"", &[]);
    let framed = run_with(World::Frame("10"), &[], &["sh", "-c", &script], b"", &[]);
    std::fs::remove_dir_all(&dir).expect("removes");
    let head = |text: String| text.lines().take(2).collect::<Vec<_>>().join(" ");
    assert_eq!(head(native.text()), "65534 0", "{}", native.stderr);
    assert_eq!(head(framed.text()), "65534 0", "{}", framed.stderr);
    let found = diecast_tests::judge(World::Frame("10"), &framed.lines(), |_, _| false);
    assert!(framed.text().contains("= pace setuid") && found.iter().all(|f| f.may_be_noise), "{found:?}");
}

/// Compiles every C guest with `make -j2`: some hundred short processes. Objects are the same, byte by byte.
fn build(world: World, dir: &Path) -> Vec<(String, Vec<u8>)> {
    std::fs::create_dir_all(dir).expect("a folder");
    let guests = format!("{}/guests", env!("CARGO_MANIFEST_DIR"));
    let makefile = format!(
        "objects := $(patsubst {guests}/%.c,%.o,$(wildcard {guests}/*.c))\nall: $(objects)\n\
         %.o: {guests}/%.c {guests}/guest.h\n\tcc -O1 -Wno-nonnull -c -o $@ $<\n"
    );
    std::fs::write(dir.join("Makefile"), makefile).expect("writes");
    let place = dir.to_string_lossy().into_owned();
    let r = run(world, &["make", "-s", "-j2", "-C", &place]);
    assert_eq!(r.status, Some(0), "{world:?}: {}{}", r.text(), r.stderr);
    assert!(!r.stderr.contains("diecast"), "{}", r.stderr);
    let mut objects: Vec<(String, Vec<u8>)> = std::fs::read_dir(dir)
        .expect("the folder")
        .flatten()
        .filter(|e| e.path().extension().is_some_and(|x| x == "o"))
        .map(|e| (e.file_name().to_string_lossy().into_owned(), std::fs::read(e.path()).expect("an object")))
        .collect();
    objects.sort();
    std::fs::remove_dir_all(dir).expect("removes");
    objects
}

#[test]
fn make_of_a_c_project() {
    if tool("make").is_none() {
        return diecast_quiet::skipped("make is not installed");
    }
    let dir = target_dir().join(format!("make-{}", std::process::id()));
    let native = build(World::Native, &dir);
    assert!(native.len() > 15, "{} objects", native.len());
    let framed = build(World::Frame("2"), &dir);
    assert_eq!(native.iter().map(|o| &o.0).collect::<Vec<_>>(), framed.iter().map(|o| &o.0).collect::<Vec<_>>());
    assert!(native == framed, "an object differs");
}

/// A process that dies on its way into the frame is no escape from it.
#[test]
fn processes_killed_and_stopped_during_their_exec() {
    let r = run(World::Frame("1"), &[&c("kills", false)]);
    assert_eq!((r.text().as_str(), r.status), ("= killed 600\n= stopped 1 others 200\n", Some(0)), "{}", r.stderr);
}
