//! Who may depend on whom: folders first, then the explicit edges within `core/`.

use anyhow::Result;
use serde::Deserialize;

use super::Finding;

/// What each crate of `core/` may use of `core/`. A new edge is a visible line in review.
const CORE_EDGES: &[(&str, &[&str])] = &[
    ("core/vtime", &[]),
    ("core/clock", &[]),
    ("core/procfs", &[]),
    ("core/abi", &["core/vtime", "core/clock"]),
    ("core/syscalls", &["core/vtime"]),
    ("core/cpu", &["core/vtime", "core/abi"]),
    ("core/net", &["core/vtime"]),
    ("core/experiment", &["core/vtime"]),
    ("core/plan", &["core/vtime", "core/experiment", "core/net", "core/cpu"]),
    // The words of a catalog that a journal repeats: modes, ways to combine.
    ("core/journal", &["core/vtime", "core/experiment"]),
    ("core/report", &["core/vtime", "core/journal"]),
];

/// What each folder may use besides its own.
/// `freestanding` gets the crates that are built without a standard library; `host` reads its wire formats.
const FOLDER_EDGES: &[(&str, &[&str])] = &[
    ("core", &["core"]),
    (
        "freestanding",
        &["freestanding", "core/vtime", "core/clock", "core/procfs", "core/abi", "core/syscalls", "core/cpu"],
    ),
    ("host", &["host", "core", "freestanding"]),
    ("app", &["host", "core"]),
    ("tests", &["app", "host", "core", "freestanding", "tests"]),
    ("benches", &["app", "host", "core", "benches"]),
    ("examples", &["examples"]),
    ("xtask", &["core"]),
];

/// What the tests of every crate may use.
const TESTS_MAY_USE: &str = "tests/quiet";

/// A package as `cargo metadata` gives it.
#[derive(Debug, Deserialize)]
pub struct Package {
    name: String,
    manifest_path: String,
    dependencies: Vec<Dependency>,
}

#[derive(Debug, Deserialize)]
struct Dependency {
    name: String,
    path: Option<String>,
    /// `dev` for what only tests use.
    kind: Option<String>,
}

/// The packages in the output of `cargo metadata --no-deps`.
pub fn packages(metadata: &[u8]) -> Result<Vec<Package>> {
    #[derive(Deserialize)]
    struct Metadata {
        packages: Vec<Package>,
    }
    Ok(serde_json::from_slice::<Metadata>(metadata)?.packages)
}

/// Every edge that the tables don't allow, and names that don't follow their path.
pub fn check(root: &str, packages: &[Package]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in packages {
        let folder = package.manifest_path.trim_end_matches("/Cargo.toml");
        let Some(from) = within(root, folder) else { continue };
        let mut find = |problem: String| findings.push(Finding { place: from.to_owned(), problem });
        let expected = format!("diecast-{}", from.replace('/', "-"));
        if (from.starts_with("core/") || from.starts_with("host/")) && package.name != expected {
            find(format!("its package is named {}, expected {expected}", package.name));
        }
        if from.starts_with("core/") && !CORE_EDGES.iter().any(|(name, _)| *name == from) {
            find("it has no row in CORE_EDGES of xtask/src/tidy/layers.rs".into());
        }
        for dependency in &package.dependencies {
            let Some(path) = &dependency.path else { continue };
            let of_tests = dependency.kind.as_deref() == Some("dev");
            match within(root, path) {
                Some(TESTS_MAY_USE) if of_tests => {}
                None => find(format!("it depends on {}, which is outside the tree", dependency.name)),
                Some(to) if !allowed(from, to) => find(format!("it depends on {to}, which its layer may not use")),
                Some(_) => {}
            }
        }
    }
    findings
}

fn within<'a>(root: &str, path: &'a str) -> Option<&'a str> {
    path.strip_prefix(root)?.strip_prefix('/')
}

fn allowed(from: &str, to: &str) -> bool {
    let covers = |allowed: &&str| to == *allowed || to.strip_prefix(*allowed).is_some_and(|rest| rest.starts_with('/'));
    if let Some((_, edges)) = CORE_EDGES.iter().find(|(name, _)| *name == from) {
        return edges.iter().any(covers);
    }
    let top = from.split('/').next().unwrap_or(from);
    let folder = FOLDER_EDGES.iter().find(|(name, _)| *name == top);
    folder.is_some_and(|(_, edges)| edges.iter().any(covers))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(name: &str, folder: &str, dependencies: &[&str]) -> Vec<String> {
        let dependencies: Vec<String> = dependencies
            .iter()
            .map(|path| match path.strip_prefix("dev:") {
                Some(path) => format!(r#"{{"name": "d", "path": "{path}", "kind": "dev"}}"#),
                None => format!(r#"{{"name": "d", "path": "{path}", "kind": null}}"#),
            })
            .chain([r#"{"name": "serde", "path": null, "kind": null}"#.to_owned()])
            .collect();
        let metadata = format!(
            r#"{{"packages": [{{"name": "{name}", "manifest_path": "/r/{folder}/Cargo.toml", "dependencies": [{}]}}]}}"#,
            dependencies.join(",")
        );
        check("/r", &packages(metadata.as_bytes()).unwrap()).into_iter().map(|finding| finding.problem).collect()
    }

    #[test]
    fn edges_go_down() {
        assert_eq!(problems("diecast-host-net", "host/net", &["/r/core/net", "/r/host/sys"]), [""; 0]);
        assert_eq!(problems("diecast", "app/diecast", &["/r/core/plan", "/r/host/run"]), [""; 0]);
        assert_eq!(problems("b", "freestanding/blob", &["/r/core/abi", "/r/core/vtime"]), [""; 0]);
        for (folder, dependency) in [
            ("core/net", "/r/host/net"),
            ("host/net", "/r/app/diecast"),
            ("app/diecast", "/r/freestanding/blob"),
            ("freestanding/blob", "/r/core/plan"),
            ("freestanding/blob", "/r/host/sys"),
            ("xtask", "/r/host/run"),
            ("examples/loadgen", "/r/core/vtime"),
            ("elsewhere", "/r/core/vtime"),
        ] {
            let name = format!("diecast-{}", folder.replace('/', "-"));
            let expected = format!("it depends on {}, which its layer may not use", &dependency[3..]);
            assert_eq!(problems(&name, folder, &[dependency]), [expected], "{folder}");
        }
    }

    #[test]
    fn only_tests_look_for_quiet() {
        assert_eq!(problems("diecast-host-net", "host/net", &["dev:/r/tests/quiet"]), [""; 0]);
        for (folder, dependency) in [("host/net", "/r/tests/quiet"), ("host/net", "dev:/r/tests")] {
            assert_eq!(problems("diecast-host-net", folder, &[dependency]).len(), 1, "{dependency}");
        }
    }

    #[test]
    fn core_has_only_its_listed_edges() {
        assert_eq!(problems("diecast-core-report", "core/report", &["/r/core/journal"]), [""; 0]);
        assert_eq!(problems("diecast-core-journal", "core/journal", &["/r/core/report"]).len(), 1);
        assert_eq!(problems("diecast-core-net", "core/net", &["/r/core/cpu"]).len(), 1);
        // A name that only begins like an allowed one.
        assert_eq!(problems("diecast-core-net", "core/net", &["/r/core/vtime2"]).len(), 1);
    }

    #[test]
    fn a_crate_of_core_needs_a_row() {
        assert_eq!(
            problems("diecast-core-extra", "core/extra", &[]),
            ["it has no row in CORE_EDGES of xtask/src/tidy/layers.rs"]
        );
    }

    #[test]
    fn names_follow_paths_and_paths_stay_inside() {
        assert_eq!(problems("net", "core/net", &[]), ["its package is named net, expected diecast-core-net"]);
        assert_eq!(problems("x", "xtask", &["/elsewhere/d"]), ["it depends on d, which is outside the tree"]);
    }
}
