//! Rules about the text of files.

use regex_lite::Regex;

use super::{File, Finding};

/// Lines of a source file. Tests of more than a few hundred lines move to a file of their own.
const LINES_MAX: usize = 800;

/// Runs every rule over every file.
pub fn check(files: &[File]) -> Vec<Finding> {
    let rules = Rules::new();
    let mut findings = Vec::new();
    for file in files {
        let problems = [
            size(file),
            marks(file, &rules),
            crate_doc(file),
            no_unsafe(file),
            core_bans(file),
            blanket_allows(file),
            machine_paths(file, &rules),
            registry_hosts(file, &rules),
            named_paths(file, files, &rules),
        ];
        let place = |problem| Finding { place: file.path.clone(), problem };
        findings.extend(problems.into_iter().flatten().map(place));
    }
    findings
}

struct Rules {
    marks: Regex,
    machine_paths: Regex,
    registry_hosts: Regex,
    named_paths: Regex,
}

impl Rules {
    fn new() -> Rules {
        let regex = |pattern: &str| Regex::new(pattern).expect("a pattern of this file");
        Rules {
            // Written so that this file does not match itself.
            marks: regex(r"\b(TO[D]O|FI[X]ME|X[X]X|HA[C]K)\b"),
            machine_paths: regex(r"(/ho[m]e/\w+|/Us[e]rs/\w+|/wo[r]k/(main|shared)|/ro[o]t/\.(cargo|rustup))"),
            registry_hosts: regex(
                r"(?i)(arti[f]actory|\.inter[n]al[:/]|[i]ndex-url|[r]eplace-with\s*=|GO[P]ROXY=|source\.crates-[i]o)",
            ),
            named_paths: regex(r"`((?:core|host|freestanding|app|tests|benches|examples|docs|xtask|fuzz)/[\w./-]+)`"),
        }
    }
}

fn is_source(path: &str) -> bool {
    [".rs", ".c", ".h", ".go", ".py", ".js", ".java", ".sh", ".ld", ".S"].iter().any(|end| path.ends_with(end))
}

fn is_core(path: &str) -> bool {
    path.starts_with("core/")
}

/// `lib.rs` or `main.rs` directly in a package's `src`.
fn is_crate_root(path: &str) -> bool {
    path.ends_with("/src/lib.rs") || path.ends_with("/src/main.rs")
}

fn size(file: &File) -> Option<String> {
    let lines = file.text.lines().count();
    (is_source(&file.path) && lines > LINES_MAX).then(|| format!("it has {lines} lines, at most {LINES_MAX}: split it"))
}

fn first_match<'a>(file: &'a File, regex: &Regex) -> Option<(usize, &'a str)> {
    let found = regex.find(&file.text)?;
    Some((line_of(file, found.start()), found.as_str()))
}

fn line_of(file: &File, offset: usize) -> usize {
    file.text[..offset].matches('\n').count() + 1
}

fn marks(file: &File, rules: &Rules) -> Option<String> {
    if file.path.ends_with("Cargo.lock") {
        return None;
    }
    let (line, mark) = first_match(file, &rules.marks)?;
    Some(format!("line {line} has a {mark} mark: do it, or open an issue"))
}

fn crate_doc(file: &File) -> Option<String> {
    let missing = is_crate_root(&file.path) && !file.text.starts_with("//!");
    missing.then(|| "a crate begins with a //! comment that says what it is".into())
}

fn no_unsafe(file: &File) -> Option<String> {
    let bound = is_core(&file.path) || file.path.starts_with("app/");
    let missing = bound && is_crate_root(&file.path) && !file.text.contains("#![forbid(unsafe_code)]");
    missing.then(|| "core and app have no unsafe code: add #![forbid(unsafe_code)]".into())
}

/// The bans of `core/clippy.toml` hold only while nothing nearer or louder speaks against them.
fn core_bans(file: &File) -> Option<String> {
    if !is_core(&file.path) {
        return None;
    }
    let nearer = file.path.ends_with("clippy.toml") && file.path != "core/clippy.toml";
    // A test may read its golden files.
    let louder = file.path.contains("/src/") && file.text.contains("clippy::disallowed_");
    (nearer || louder).then(|| "the bans of core/clippy.toml have no exceptions".into())
}

fn blanket_allows(file: &File) -> Option<String> {
    if !file.path.ends_with(".rs") {
        return None;
    }
    let line = file.text.lines().find(|line| {
        let rest = line.trim_start().strip_prefix("#![allow(");
        // One that gives its reason has been thought about.
        rest.is_some_and(|rest| {
            !rest.contains("reason =")
                && ["unused", "dead_code", "warnings", "clippy::all"].iter().any(|w| rest.starts_with(w))
        })
    })?;
    Some(format!("{} hides real faults: expect the one lint at the one place, with a reason", line.trim()))
}

/// Nobody's home: documents and bad inputs need an example of a path.
fn machine_paths(file: &File, rules: &Rules) -> Option<String> {
    let nobody = |path: &str| ["/me", "/user", "/you"].iter().any(|name| path.ends_with(name));
    let path = rules.machine_paths.find_iter(&file.text).find(|path| !nobody(path.as_str()))?;
    let line = line_of(file, path.start());
    Some(format!("line {line} has {}, a path of one developer's machine", path.as_str()))
}

fn registry_hosts(file: &File, rules: &Rules) -> Option<String> {
    let foreign_source = |line: &&str| {
        let source = line.trim().strip_prefix("source = \"");
        source.is_some_and(|source| source != "registry+https://github.com/rust-lang/crates.io-index\"")
    };
    if file.path.ends_with("Cargo.lock") {
        let line = file.text.lines().find(foreign_source)?;
        return Some(format!("{} is not the public registry", line.trim()));
    }
    let (line, found) = first_match(file, &rules.registry_hosts)?;
    Some(format!("line {line} has {found}: a package registry belongs into the machine's own settings"))
}

/// Documents that name a file of the tree name one that exists.
fn named_paths(file: &File, files: &[File], rules: &Rules) -> Option<String> {
    if !file.path.ends_with(".md") {
        return None;
    }
    let exists = |path: &str| {
        let path = path.trim_end_matches('/');
        files
            .iter()
            .any(|file| file.path.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
    };
    let mut named = rules.named_paths.captures_iter(&file.text).filter_map(|captures| captures.get(1));
    let lost = named.find(|path| !exists(path.as_str()))?;
    Some(format!("it names {}, which does not exist", lost.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(path: &str, text: &str) -> Vec<String> {
        let files = [(path, text), ("core/net/src/lib.rs", "//! Net.\n#![forbid(unsafe_code)]\n")]
            .map(|(path, text)| File { path: path.into(), text: text.into() });
        check(&files).into_iter().filter(|finding| finding.place == path).map(|finding| finding.problem).collect()
    }

    /// Joined, so that the words don't stand in this file.
    fn word(parts: [&str; 2]) -> String {
        parts.concat()
    }

    #[test]
    fn a_good_file_has_no_problem() {
        assert_eq!(problems("core/x/src/lib.rs", "//! X.\n#![forbid(unsafe_code)]\n"), [""; 0]);
        assert_eq!(problems("host/x/src/lib.rs", "//! X.\n"), [""; 0]);
        assert_eq!(problems("README.md", "See `core/net`, `core/net/src/lib.rs` and `cargo test`."), [""; 0]);
    }

    #[test]
    fn long_files() {
        assert_eq!(problems("host/x/src/a.rs", &"\n".repeat(800)), [""; 0]);
        assert_eq!(problems("host/x/src/a.rs", &"\n".repeat(801)), ["it has 801 lines, at most 800: split it"]);
        assert_eq!(problems("examples/a.txt", &"\n".repeat(2000)), [""; 0]);
    }

    #[test]
    fn marks_of_unfinished_work() {
        for mark in [["TO", "DO"], ["FIX", "ME"], ["X", "XX"], ["HA", "CK"]].map(word) {
            let expected = format!("line 2 has a {mark} mark: do it, or open an issue");
            assert_eq!(problems("docs/a.md", &format!("a\n{mark}: later\n")), [expected]);
        }
        assert_eq!(problems("docs/a.md", &word(["HA", "CKNEY"])), [""; 0]);
    }

    #[test]
    fn crates_without_a_word_about_themselves() {
        let expected = ["a crate begins with a //! comment that says what it is"];
        assert_eq!(problems("host/x/src/lib.rs", "mod a;\n//! Late.\n"), expected);
        assert_eq!(problems("xtask/src/main.rs", "fn main() {}\n"), expected);
    }

    #[test]
    fn core_and_app_forbid_unsafe_code() {
        let expected = ["core and app have no unsafe code: add #![forbid(unsafe_code)]"];
        assert_eq!(problems("core/x/src/lib.rs", "//! X.\n"), expected);
        assert_eq!(problems("app/diecast/src/main.rs", "//! X.\n"), expected);
    }

    #[test]
    fn exceptions_from_the_bans_of_core() {
        let expected = ["the bans of core/clippy.toml have no exceptions"];
        assert_eq!(problems("core/x/clippy.toml", ""), expected);
        assert_eq!(problems("core/x/src/a.rs", "#[allow(clippy::disallowed_methods)]\n"), expected);
        assert_eq!(problems("core/clippy.toml", ""), [""; 0]);
        assert_eq!(problems("core/x/tests/a.rs", "#![allow(clippy::disallowed_methods)]\n"), [""; 0]);
        assert_eq!(problems("host/x/src/a.rs", "#[allow(clippy::disallowed_methods)]\n"), [""; 0]);
    }

    #[test]
    fn blanket_allows() {
        for lint in ["unused", "dead_code", "warnings", "clippy::all", "unused_variables"] {
            assert_eq!(problems("host/x/src/a.rs", &format!("#![allow({lint})]\n")).len(), 1, "{lint}");
        }
        for line in ["#![allow(clippy::too_many_lines)]\n", "#![allow(dead_code, reason = \"shared by tests\")]\n"] {
            assert_eq!(problems("host/x/src/a.rs", line), [""; 0], "{line}");
        }
    }

    #[test]
    fn paths_of_one_machine() {
        for path in [["/ho", "me/ann/x"], ["/Us", "ers/Ann"], ["/wo", "rk/main/core"], ["/ro", "ot/.cargo/bin"]] {
            let found = problems("docs/a.md", &word(path));
            assert!(found.len() == 1 && found[0].ends_with("a path of one developer's machine"), "{path:?}: {found:?}");
        }
        assert_eq!(problems("docs/a.md", "/etc/hosts /home /home/me/x /root"), [""; 0]);
        assert_eq!(problems("docs/a.md", &word(["/home/me and /ho", "me/ann"])).len(), 1);
    }

    #[test]
    fn registries() {
        for text in [["https://arti", "factory.example/x"], ["repo.inter", "nal/simple"], ["--in", "dex-url x"]] {
            assert_eq!(problems("Makefile", &word(text)).len(), 1, "{text:?}");
        }
        let lock = |source: &str| format!("name = \"a\"\nsource = \"{source}\"\n");
        assert_eq!(problems("Cargo.lock", &lock("registry+https://github.com/rust-lang/crates.io-index")), [""; 0]);
        assert_eq!(problems("xtask/Cargo.lock", &lock("sparse+https://mirror.example/index/")).len(), 1);
    }

    #[test]
    fn documents_name_what_exists() {
        let lost = "it names core/lost/src/lib.rs, which does not exist";
        assert_eq!(problems("ARCHITECTURE.md", "`core/net/` and `core/lost/src/lib.rs`"), [lost]);
        // Only a beginning of a name is not the name.
        assert_eq!(problems("ARCHITECTURE.md", "`core/ne`").len(), 1);
    }
}
