//! Bad input: one clear message with its place, the right status, nothing left behind.

use crate::bench::{CATALOG, bench, run, text};

/// One clear message, the right status, nothing left behind.
#[test]
fn bad_input_is_refused_with_its_place() {
    let Some(b) = bench("bad") else { return };
    let with = |from: &str, to: &str| {
        assert!(CATALOG.contains(from));
        std::fs::write(b.folder.join("bad.yaml"), CATALOG.replace(from, to)).unwrap();
    };
    let expect = |arguments: &[&str], status: i32, words: &str| {
        let o = run(&b, arguments);
        let said = text(&o.stderr);
        assert_eq!(o.status.code(), Some(status), "{arguments:?}: {said}{}", text(&o.stdout));
        assert!(said.contains(words), "{arguments:?} said: {said}");
    };
    expect(&["run", "small.yaml"], 2, "needs a TDF or a scale factor");
    expect(&["run", "missing.yaml", "--tdf", "4"], 2, "missing.yaml");
    with("delay: 5ms", "delay: 5");
    expect(&["check", "bad.yaml"], 2, "bad.yaml:11:");
    with("speed: 0.4", "sped: 0.4");
    expect(&["check", "bad.yaml"], 2, "speed");
    with("speed: 0.4", "speed: 1.5");
    expect(&["plan", "bad.yaml", "--mode", "baseline"], 3, "");
    with("speed: 0.4", "speed: 0.9");
    expect(&["run", "bad.yaml", "--mode", "native"], 3, "");
    with("{/usr/local/bin/cpuserver: diecast-cpuserver}", "{/usr/local/bin/cpuserver: no-such-file}");
    expect(&["run", "bad.yaml", "--mode", "baseline"], 2, "no-such-file");
    with("run: [cpuserver,", "run: [no-such-program,");
    expect(&["run", "bad.yaml", "--mode", "baseline"], 3, "no-such-program");
    // A program that dies: which, how, and its last words.
    with("run: [cpuserver, --listen, \"0.0.0.0:80\", --service, 500us]", "run: [sh, -c, \"echo last words; exit 9\"]");
    let o = run(&b, &["run", "bad.yaml", "--mode", "baseline"]);
    assert_eq!(o.status.code(), Some(1), "{}", text(&o.stderr));
    let said = text(&o.stdout);
    assert!(said.contains("status 9") && said.contains("last words"), "{said}");
    assert!(text(&run(&b, &["ps"]).stdout).lines().count() <= 1, "a lab was left behind");
}
