//! Bad input: one clear message with its place, the right status, nothing left behind.

use std::process::{Command, Output};

use diecast_tests::{diecast, refuse};

use crate::bench::{Bench, CATALOG, LabRun, bench, labs_of, run, text};

/// Writes `bad.yaml`: the catalog with these replacements.
fn with(b: &Bench, replacements: &[(&str, &str)]) {
    let mut catalog = CATALOG.to_owned();
    for (from, to) in replacements {
        assert!(catalog.contains(from), "{from}");
        catalog = catalog.replace(from, to);
    }
    std::fs::write(b.folder.join("bad.yaml"), catalog).unwrap();
}

/// Line and column of the first of these words in `bad.yaml`, as messages write them.
fn place(b: &Bench, words: &str) -> String {
    let catalog = std::fs::read_to_string(b.folder.join("bad.yaml")).unwrap();
    let at = catalog.find(words).unwrap();
    let line_start = catalog[..at].rfind('\n').map_or(0, |n| n + 1);
    format!("bad.yaml:{}:{}: ", catalog[..at].matches('\n').count() + 1, at - line_start + 1)
}

fn refused(o: &Output, status: i32, words: &[&str]) {
    let said = text(&o.stderr);
    assert_eq!(o.status.code(), Some(status), "{said}{}", text(&o.stdout));
    for word in words {
        assert!(said.contains(word), "no '{word}' in: {said}");
    }
    assert_eq!(text(&o.stdout), "", "a refusal prints no results");
}

/// No lab, no directory of results, nothing for `diecast clean` to find.
fn nothing_left(b: &Bench) {
    assert!(!b.folder.join("out").exists(), "a directory of results stayed");
    assert_eq!(labs_of(b), [] as [serde_json::Value; 0], "a lab stayed");
    assert_eq!(text(&run(b, &["clean"]).stdout), "nothing to remove\n");
}

#[test]
fn faults_in_the_text_are_exit_2_with_file_line_and_what_was_expected() {
    let Some(b) = bench("text") else { return };
    refused(&run(&b, &["run", "small.yaml"]), 2, &["needs a TDF or a scale factor"]);
    refused(&run(&b, &["run", "missing.yaml", "--tdf", "4"]), 2, &["missing.yaml"]);
    let islands = [
        ("switches: [s]", "switches: [s, t]"),
        (
            "{from: [client, server], to: s, bandwidth: 100Mbit/s, delay: 5ms}",
            "{from: [client], to: s, bandwidth: 100Mbit/s, delay: 5ms}\n    - {from: [server], to: t, bandwidth: 100Mbit/s, delay: 5ms}",
        ),
    ];
    type Case<'a> = (&'a [(&'a str, &'a str)], &'a str, &'a [&'a str]);
    let cases: [Case<'_>; 6] = [
        (&[("delay: 5ms", "delay: 5")], "5}", &["'5' has no unit, expected a duration such as 10ms"]),
        (&[("delay: 5ms", "delay: 5Mbit")], "5Mbit", &["no accepted unit, expected a duration such as 10ms"]),
        (&[("memory: 128MiB", "memory: 128MiB, colour: red")], "colour", &["has no key 'colour'"]),
        (&[("from: [client, server]", "from: [client]")], "server: {type", &["node 'server' has no link, expected"]),
        (&islands, "topology:", &["can't be reached from node 'client', expected a path between every two nodes"]),
        (
            &[("{/usr/local/bin/cpuserver: diecast-cpuserver}", "{/usr/local/bin/cpuserver: no-such-file}")],
            "no-such-file",
            &["cannot read no-such-file", "paths are relative"],
        ),
    ];
    for (replacements, at, words) in cases {
        with(&b, replacements);
        let place = place(&b, at);
        let mut all = vec![place.as_str()];
        all.extend(words);
        refused(&run(&b, &["run", "bad.yaml", "--mode", "baseline", "--out", "out"]), 2, &all);
        refused(&run(&b, &["validate", "bad.yaml", "--scale", "4", "--out", "out"]), 2, &all);
    }
    nothing_left(&b);
}

#[test]
fn what_the_host_lacks_is_exit_3_and_nothing_stays() {
    let Some(b) = bench("host") else { return };
    let run_bad = || run(&b, &["run", "bad.yaml", "--mode", "baseline", "--out", "out"]);
    // Capacity: a core, all cores, memory, a mode that demands whole cores.
    with(&b, &[("speed: 0.4", "speed: 1.5")]);
    refused(&run_bad(), 3, &["bad.yaml:4:", "would need 1.50 real cores", "hint: "]);
    with(&b, &[("server: {type: half}", "server: {type: half, count: 9}"), ("http://server/", "http://server-1/")]);
    refused(&run_bad(), 3, &["bad.yaml:7:3: ", "at most 0.85 is for nodes", "hint: "]);
    with(&b, &[("memory: 128MiB", "memory: 900GiB")]);
    refused(&run_bad(), 3, &["bad.yaml:4:", "of memory, the host has"]);
    with(&b, &[]);
    refused(&run(&b, &["run", "bad.yaml", "--mode", "native", "--out", "out"]), 3, &["bad.yaml:4:", "speed 1.00 only"]);
    // Programs: found to be missing in the node, with the place of the command.
    with(&b, &[("run: [cpuserver,", "run: [no-such-program,")]);
    let at = place(&b, "[no-such-program");
    refused(&run_bad(), 3, &[&at, "node server: cannot start no-such-program: ", "No such file", "hint: install it"]);
    with(&b, &[("command: [loadgen,", "command: [no-such-load,")]);
    let at = place(&b, "[no-such-load");
    refused(&run_bad(), 3, &[&at, "node client: cannot start no-such-load: "]);
    nothing_left(&b);
}

/// A kernel without a feature, a machine without a program, root without a capability: each made around `diecast`.
#[test]
fn a_lesser_host_is_told_from_a_wrong_catalog() {
    let Some(b) = bench("lesser") else { return };
    let command = |prefix: &[&str]| {
        let program = diecast().to_string_lossy().into_owned();
        let words: Vec<&str> = prefix.iter().copied().chain([program.as_str()]).collect();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).args(["run", "small.yaml", "--mode", "baseline", "--out", "out"]);
        command.current_dir(&b.folder);
        command
    };
    for (call, errno, words) in [
        (libc::SYS_seccomp, libc::ENOSYS, "putting cpuserver on node server in its frame"),
        (libc::SYS_ptrace, libc::EPERM, "node server: process "),
        (libc::SYS_memfd_create, libc::ENOSYS, "making a frame's memory: Function not implemented"),
        (libc::SYS_unshare, libc::EPERM, "can't create a network namespace: Operation not permitted"),
    ] {
        let mut c = command(&[]);
        refuse(&mut c, call, errno);
        refused(&c.output().unwrap(), 3, &[words, "hint: `diecast doctor`"]);
    }
    let mut c = command(&[]);
    c.env("PATH", "/nowhere");
    refused(&c.output().unwrap(), 3, &["cannot run runc", "hint: install runc"]);
    let o = command(&["setpriv", "--bounding-set", "-sys_admin"]).output().unwrap();
    refused(&o, 3, &["a lab needs root with its capabilities", "this is root without SYS_ADMIN", "hint: "]);
    let user = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"];
    let probe = Command::new(user[0]).args(&user[1..]).arg(diecast()).arg("--version").output().unwrap();
    if probe.status.success() {
        refused(&command(&user).output().unwrap(), 3, &["this is ordinary user 65534"]);
    } else {
        println!("not tried as an ordinary user, who may not read the program");
    }
    // All controllers in v2, as on a current distribution, of which this kernel has none to give.
    let mount_v2 = "umount -l /sys/fs/cgroup/* 2>/dev/null; umount -l /sys/fs/cgroup; mount -t cgroup2 none /sys/fs/cgroup && ! grep -q memory /sys/fs/cgroup/cgroup.controllers && exec \"$@\"; exit 77";
    let o = command(&["unshare", "--mount", "sh", "-c", mount_v2, "sh"]).output().unwrap();
    match o.status.code() {
        Some(77) => println!("no host without v2 controllers: {}", text(&o.stderr)),
        _ => {
            refused(&o, 3, &["starting nodes: no cgroup hierarchy with a memory controller", "hint: mount the cgroup"])
        }
    }
    nothing_left(&b);
}

/// Which program, how it ended, its last words (and not those of an earlier run in the same directory): exit 1, and the
/// results so far stay.
#[test]
fn a_program_that_dies_is_named_with_its_last_words() {
    let Some(b) = bench("dies") else { return };
    let server = "run: [cpuserver, --listen, \"0.0.0.0:80\", --service, 500us]";
    let died = |program: &str, words: &[&str]| {
        with(&b, &[(server, program)]);
        let o = run(&b, &["run", "bad.yaml", "--mode", "baseline", "--out", "died"]);
        let said = text(&o.stdout);
        assert_eq!(o.status.code(), Some(1), "{said}{}", text(&o.stderr));
        assert!(said.starts_with("FAILED: "), "{said}");
        for word in words {
            assert!(said.contains(word), "no '{word}' in: {said}");
        }
        assert!(b.folder.join("died/run.json").exists());
        nothing_left(&b);
    };
    died("run: [sh, -c, \"echo last words; exit 9\"]", &["sh on node server ended with status 9", "| last words"]);
    died("run: [sh, -c, \"kill -ABRT $$$$\"]", &["sh on node server ended by signal 6; it wrote nothing"]);
    // It keeps the last line, which never ends.
    died(
        "run: [sh, -c, \"echo filling; exec tail /dev/zero\"]",
        &["on node server ended by signal 9: the kernel killed it at the node's memory limit of 128 MiB", "| filling"],
    );
}

/// A node whose init is killed ends the run, with the node's name.
#[test]
fn a_node_that_dies_is_named() {
    let Some(b) = bench("gone") else { return };
    let lab = LabRun::start(&b, &["small.yaml", "--mode", "baseline"]);
    lab.until("warm_up");
    let server = lab.process("server", "cpuserver");
    let status = std::fs::read_to_string(format!("/proc/{server}/status")).unwrap();
    let init = status.lines().find_map(|l| l.strip_prefix("PPid:")).unwrap().trim();
    assert!(Command::new("kill").args(["-9", init]).status().unwrap().success());
    let ended = lab.end();
    assert_eq!(ended.status, Some(1), "{}{}", ended.table, ended.errors);
    assert!(ended.table.starts_with("FAILED: ") && ended.table.contains("server"), "{}", ended.table);
    assert_eq!(text(&run(&b, &["clean"]).stdout), "nothing to remove\n");
}

/// What this host prints of itself has a speed near 1 on it; nearer only where the host's own speed stands still.
#[test]
fn this_host_as_a_machine_type_is_as_fast_as_this_host() {
    let Some(b) = bench("host") else { return };
    let o = run(&b, &["catalog", "host"]);
    assert_eq!(o.status.code(), Some(0), "{}", text(&o.stderr));
    let section = text(&o.stdout);
    assert!(section.contains("# disk: ") && section.contains("# network: "), "{section}");
    let score = section.split("score: ").nth(1).and_then(|rest| rest.split(',').next()).expect("a score").to_owned();
    with(&b, &[("speed: 0.4", &format!("score: {score}"))]);
    let o = run(&b, &["plan", "bad.yaml", "--tdf", "4", "--json"]);
    assert_eq!(o.status.code(), Some(0), "{}", text(&o.stderr));
    let plan: serde_json::Value = serde_json::from_slice(&o.stdout).unwrap();
    let speed_ppm = plan["nodes"][0]["speed_ppm"].as_u64().unwrap();
    assert!((600_000..1_600_000).contains(&speed_ppm), "{speed_ppm} of {section}");
    assert!(std::fs::read_dir(&b.folder).unwrap().flatten().all(|e| !e.file_name().to_string_lossy().contains("disk")));
}
