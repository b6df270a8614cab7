//! Building guests. Each is built once a run, when its source is newer than what is there.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use crate::runs::{building, target_dir};

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("guests")
}

fn modified(path: &Path) -> Option<SystemTime> {
    path.metadata().ok()?.modified().ok()
}

/// Runs `build` unless `out` is newer than every source.
fn built(name: &str, inputs: &[&str], build: impl FnOnce(&Path, &Path) -> Command) -> PathBuf {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = target_dir().join("guests");
    std::fs::create_dir_all(&dir).expect("a folder for guests");
    let out = dir.join(name);
    let newest = inputs.iter().filter_map(|i| modified(&sources().join(i))).max().expect("sources of this tree");
    if modified(&out).is_none_or(|m| m < newest) {
        let mut c = build(&sources(), &out);
        let done = building(|| c.output()).unwrap_or_else(|e| panic!("{c:?}: {e}"));
        assert!(done.status.success(), "{c:?}\n{}", String::from_utf8_lossy(&done.stderr));
    }
    out
}

/// A C guest, dynamic or static.
pub fn c(name: &str, linked_static: bool) -> String {
    let source = format!("{name}.c");
    let out = if linked_static { format!("{name}-static") } else { name.to_owned() };
    let path = built(&out, &[&source, "guest.h", "chance.h"], |dir, out| {
        let mut c = Command::new("cc");
        c.args(["-O1", "-g", "-Wall", "-Wno-nonnull"])
            .arg("-o")
            .arg(out)
            .arg(dir.join(&source))
            .args(["-lrt", "-lpthread"]);
        if linked_static {
            c.arg("-static");
        }
        c
    });
    path.to_string_lossy().into_owned()
}

/// A C guest built with more flags, as `NAME-SUFFIX`; None where the compiler refuses.
pub fn c_with(name: &str, suffix: &str, flags: &[&str]) -> Option<String> {
    let source = format!("{name}.c");
    attempt(&format!("{name}-{suffix}"), &[&source, "guest.h", "chance.h"], |dir, out| {
        let mut c = Command::new("cc");
        c.args(["-O1", "-w"]).args(flags).arg("-o").arg(out).arg(dir.join(&source)).args(["-lrt", "-lpthread"]);
        c
    })
}

/// A C guest, static, with musl; None without its compiler.
pub fn musl(name: &str) -> Option<String> {
    let source = format!("{name}.c");
    attempt(&format!("{name}-musl"), &[&source, "guest.h"], |dir, out| {
        let mut c = Command::new("musl-gcc");
        // Linux's own headers are where the other library's are.
        c.args(["-static", "-O1", "-w", "-idirafter", "/usr/include", "-idirafter", "/usr/include/x86_64-linux-gnu"]);
        c.arg("-o").arg(out).arg(dir.join(&source));
        c
    })
}

/// A C++ guest; None without a compiler.
pub fn cxx(name: &str) -> Option<String> {
    let source = format!("{name}.cc");
    attempt(name, &[&source], |dir, out| {
        let mut c = Command::new("c++");
        c.args(["-O1", "-Wall", "-fnon-call-exceptions", "-o"]).arg(out).arg(dir.join(&source)).arg("-lpthread");
        c
    })
}

/// As [`built`], where a compiler that is missing, or can't make the smallest program so, is no failure.
/// The first of `inputs` is what it is given.
fn attempt(name: &str, inputs: &[&str], build: impl Fn(&Path, &Path) -> Command) -> Option<String> {
    let failure = match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| built(name, inputs, &build))) {
        Ok(path) => return Some(path.to_string_lossy().into_owned()),
        Err(failure) => failure,
    };
    let probe = target_dir().join("guests").join(format!("probe-{name}-{:?}", std::thread::current().id()));
    std::fs::create_dir_all(&probe).expect("a folder for a probe");
    std::fs::write(probe.join(inputs[0]), "int main() { return 0; }\n").expect("a probe");
    let works = build(&probe, &probe.join("out")).output().is_ok_and(|o| o.status.success());
    std::fs::remove_dir_all(&probe).expect("a folder of ours");
    if works {
        std::panic::resume_unwind(failure);
    }
    None
}

/// The smallest program: it ends at once.
pub fn tiny() -> String {
    let path = built("tiny", &["tiny.c"], |dir, out| {
        let mut c = Command::new("cc");
        c.args(["-static", "-nostdlib", "-O1", "-o"]).arg(out).arg(dir.join("tiny.c"));
        c
    });
    path.to_string_lossy().into_owned()
}

/// Path of a program, when it is installed.
pub fn tool(name: &str) -> Option<String> {
    let dirs = std::env::var_os("PATH")?;
    let found = std::env::split_paths(&dirs).map(|d| d.join(name)).find(|p| p.is_file())?;
    Some(found.to_string_lossy().into_owned())
}

/// A static Go guest.
pub fn go(go: &str, name: &str) -> String {
    let source = format!("{name}.go");
    let path = built(&format!("{name}-go"), &[&source], |dir, out| {
        let mut c = Command::new(go);
        c.args(["build", "-o"]).arg(out).arg(dir.join(&source)).env("CGO_ENABLED", "0").env("GO111MODULE", "off");
        c
    });
    path.to_string_lossy().into_owned()
}

/// A Rust guest.
pub fn rust() -> String {
    let path = built("guest-rust", &["guest.rs"], |dir, out| {
        let mut c = Command::new("rustc");
        c.args(["--edition", "2024", "-O", "-o"]).arg(out).arg(dir.join("guest.rs"));
        c
    });
    path.to_string_lossy().into_owned()
}

/// The folder of a Java guest's class.
pub fn java(javac: &str) -> String {
    let path = built("Guest.class", &["Guest.java"], |dir, out| {
        let mut c = Command::new(javac);
        c.arg("-d").arg(out.parent().expect("in a folder")).arg(dir.join("Guest.java"));
        c
    });
    path.parent().expect("in a folder").to_string_lossy().into_owned()
}
