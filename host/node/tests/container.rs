//! Nodes as real containers: what a program in a node sees, and what the host sees of the node.

mod common;

use common::{State, eventually, node, run, shell, wait_exit};
use diecast_host_node::{
    Content, Event, Exit, LabDir, Node, NodeError, NodeFile, NodeSpec, Output, ProgramSpec, Quota, Resource, Rootfs,
    User, control_request,
};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

#[test]
fn programs_run_with_their_output_and_status() {
    let Some(state) = State::new("run") else { return };
    let lab = state.lab();
    let node = node(&lab, "one");
    let ran = shell(&node, &state, "echo out; echo err >&2; exit 7");
    assert_eq!((ran.exit, ran.output.as_str()), (Exit::Code(7), "out\nerr\n"));
    assert_eq!(shell(&node, &state, "kill -TERM $$").exit, Exit::Signal(15));

    let mut spec = ProgramSpec::new(["env"]);
    spec.env.insert("COLOUR".into(), "blue".into());
    spec.cwd = "/usr".into();
    let ran = run(&node, &state, spec);
    assert!(ran.output.contains("COLOUR=blue\n") && ran.output.contains("PATH=/usr/local/sbin:"), "{}", ran.output);

    let mut spec = ProgramSpec::new(["pwd"]);
    spec.cwd = "/usr/lib".into();
    assert_eq!(run(&node, &state, spec).output, "/usr/lib\n");
    node.stop().unwrap();
    lab.remove().unwrap();
}

#[test]
fn a_program_that_can_not_run_is_reported() {
    let Some(state) = State::new("fail") else { return };
    let lab = state.lab();
    let node = node(&lab, "one");
    let failure = |spec: ProgramSpec| {
        let wanted = node.start_program(spec).unwrap();
        match node.next_event(Some(common::PATIENCE)).unwrap() {
            Some(Event::Failed { program, errno, what }) if program == wanted => (errno, what),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(failure(ProgramSpec::new(["no-such-program"])), (libc::ENOENT, "execute 'no-such-program'".into()));
    assert_eq!(failure(ProgramSpec::new(["/etc/passwd"])), (libc::EACCES, "execute '/etc/passwd'".into()));
    let mut spec = ProgramSpec::new(["true"]);
    spec.cwd = "/no/where".into();
    assert_eq!(failure(spec), (libc::ENOENT, "change to directory '/no/where'".into()));
    let mut spec = ProgramSpec::new(["true"]);
    spec.cpus = Some(vec![1000]);
    assert_eq!(failure(spec), (libc::EINVAL, "pin to cpus [1000]".into()));
    assert_eq!(failure(ProgramSpec::new(Vec::<String>::new())).0, libc::EINVAL);
    // And the node is as good as before.
    assert_eq!(shell(&node, &state, "exit 0").exit, Exit::Code(0));
}

#[test]
fn a_node_has_namespaces_of_its_own() {
    let Some(state) = State::new("isolation") else { return };
    let lab = state.lab();
    let (a, b) = (node(&lab, "alpha"), node(&lab, "beta"));
    let links = "for n in pid mnt uts ipc net cgroup; do readlink /proc/self/ns/$n; done";
    let host = String::from_utf8(Command::new("sh").args(["-c", links]).output().unwrap().stdout).unwrap();
    let (in_a, in_b) = (shell(&a, &state, links).output, shell(&b, &state, links).output);
    assert_eq!(in_a.lines().count(), 6);
    for ((host, a), b) in host.lines().zip(in_a.lines()).zip(in_b.lines()) {
        assert!(host != a && a != b && host != b, "{host} {a} {b}");
    }
    assert_eq!(shell(&a, &state, "hostname; cat /proc/1/comm").output, "alpha\ndiecast-init\n");
    // Loopback is up; nothing else is there.
    let ran = shell(&a, &state, "cat /sys/class/net/lo/operstate; ls /sys/class/net");
    assert!(ran.output.ends_with("lo\n") && !ran.output.contains("eth"), "{}", ran.output);
    // Whatever is written stays in the node.
    let mark = format!("/tmp/diecast-mark-{}", std::process::id());
    assert_eq!(shell(&a, &state, &format!("echo x > {mark}; cat {mark}")).output, "x\n");
    assert_eq!(shell(&b, &state, &format!("test -e {mark}")).exit, Exit::Code(1));
    assert!(!Path::new(&mark).exists());
    // No mount of a node shows in the host's table.
    let id = lab.id().to_owned();
    assert!(!fs::read_to_string("/proc/self/mountinfo").unwrap().contains(&id));
    // Processes of the host are out of sight: init, the shell, ps itself.
    let pids = shell(&a, &state, "ls /proc | grep -c '^[0-9]'").output;
    assert!(pids.trim().parse::<u32>().unwrap() <= 5, "{pids}");
}

#[test]
fn a_given_network_namespace_is_used() {
    let Some(state) = State::new("netns") else { return };
    let lab = state.lab();
    // The namespace of a sleeping process stands for the one that host/net makes.
    let mut sleeper = Command::new("unshare").args(["--net", "sleep", "60"]).spawn().unwrap();
    let path = format!("/proc/{}/ns/net", sleeper.id());
    let own = fs::read_link("/proc/self/ns/net").unwrap();
    eventually("a namespace", Duration::from_secs(5), || fs::read_link(&path).is_ok_and(|link| link != own));
    let mut spec = NodeSpec::new("one");
    spec.netns = Some(fs::File::open(&path).unwrap().into());
    let node = Node::start(&lab, spec).unwrap();
    let expected = fs::read_link(&path).unwrap().display().to_string();
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    assert_eq!(shell(&node, &state, "readlink /proc/self/ns/net").output.trim(), expected);
    // RUNNING comes with loopback's IFF_UP.
    assert_eq!(shell(&node, &state, "cat /sys/class/net/lo/flags").output.trim(), "0x9");
}

#[test]
fn names_files_and_directories_are_as_asked() {
    let Some(state) = State::new("files") else { return };
    let lab = state.lab();
    let source = state.0.join("source");
    fs::write(&source, "from the host\n").unwrap();
    let mut spec = NodeSpec::new("web-1");
    spec.hosts = vec![
        ("10.0.0.1".parse().unwrap(), vec!["web-1".into()]),
        ("10.0.0.2".parse().unwrap(), vec!["db".into(), "db.site".into()]),
        ("fd00::2".parse().unwrap(), vec!["db".into()]),
    ];
    spec.files = vec![
        NodeFile::text("/etc/app/app.conf", "port 80\n"),
        NodeFile { path: "/bin/greet".into(), content: Content::Bytes(b"#!/bin/sh\necho hi\n".to_vec()), mode: 0o755 },
        NodeFile { path: "/run/app/state".into(), content: Content::HostFile(source), mode: 0o600 },
        NodeFile::text("/var/run/pidfile", "1\n"),
    ];
    let node = Node::start(&lab, spec).unwrap();
    assert_eq!(
        shell(&node, &state, "cat /etc/app/app.conf; greet; cat /run/app/state").output,
        "port 80\nhi\nfrom the host\n"
    );
    assert_eq!(shell(&node, &state, "getent hosts db.site | cut -d' ' -f1").output, "10.0.0.2\n");
    assert_eq!(shell(&node, &state, "getent hosts db | cut -d' ' -f1").output, "fd00::2\n");
    assert_eq!(shell(&node, &state, "cat /etc/hostname").output, "web-1\n");
    // Links of the root are still links, and the host's own /run is out of sight.
    assert_eq!(shell(&node, &state, "readlink /bin; cat /run/pidfile").output, "usr/bin\n1\n");
    assert_eq!(shell(&node, &state, "ls /run | grep diecast").output, "");
    assert_eq!(shell(&node, &state, "stat -c '%a %U' /tmp /run/app/state /").output, "1777 root\n600 root\n755 root\n");
    // Files given are ordinary ones.
    assert_eq!(
        shell(&node, &state, "echo more >> /etc/app/app.conf && cat /etc/app/app.conf").output,
        "port 80\nmore\n"
    );
}

#[test]
fn installed_programs_run() {
    let Some(state) = State::new("programs") else { return };
    let lab = state.lab();
    let mut spec = NodeSpec::new("one");
    let path = "/usr/local/go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    spec.env.insert("PATH".into(), path.into());
    let node = Node::start(&lab, spec).unwrap();
    // Each prints 42 when it really works.
    let programs = [
        ("python3", "python3 -c 'import ssl, threading; print(6*7)'"),
        ("node", "node -e 'console.log(6*7)'"),
        ("go", "go version | grep -q go && echo 42"),
        ("java", "java -version 2>&1 | grep -q version && echo 42"),
        ("haproxy", "haproxy -v | grep -q HAProxy && echo 42"),
        ("gunicorn", "gunicorn --version | grep -q gunicorn && echo 42"),
        (
            "redis-server",
            "redis-server --save '' --port 0 --unixsocket /tmp/r.sock --daemonize yes > /dev/null; sleep 0.5; \
             redis-cli -s /tmp/r.sock set answer 42 > /dev/null; redis-cli -s /tmp/r.sock get answer",
        ),
    ];
    for (program, script) in programs {
        if shell(&node, &state, &format!("command -v {program}")).exit != Exit::Code(0) {
            diecast_quiet::skipped(format_args!("{program}: not installed"));
            continue;
        }
        assert_eq!(shell(&node, &state, script).output, "42\n", "{program}");
    }
}

#[test]
fn rights_are_those_of_a_container() {
    let Some(state) = State::new("rights") else { return };
    let lab = state.lab();
    let node = node(&lab, "one");
    let sets = "grep -E '^Cap(Inh|Prm|Eff|Bnd|Amb)' /proc/self/status | cut -f2";
    // Docker's set.
    assert_eq!(
        shell(&node, &state, sets).output,
        "0000000000000000\n00000000a80425fb\n00000000a80425fb\n00000000a80425fb\n0000000000000000\n"
    );
    let mut spec = ProgramSpec::new(["sh", "-c", &format!("{sets}; id -u; id -g; id -G")]);
    spec.user = Some(User { uid: 65534, gid: 65533, groups: vec![7, 65533] });
    assert_eq!(
        run(&node, &state, spec).output,
        "0000000000000000\n0000000000000000\n0000000000000000\n00000000a80425fb\n0000000000000000\n65534\n65533\n65533 7\n"
    );
    let mut spec = ProgramSpec::new(["sh", "-c", "grep CapEff /proc/self/status; grep NoNewPrivs /proc/self/status"]);
    spec.keep_caps = true;
    spec.no_new_privs = true;
    let output = run(&node, &state, spec).output;
    assert!(!output.contains("a80425fb") && output.contains("NoNewPrivs:\t1"), "{output}");
    assert_eq!(shell(&node, &state, "mount -t tmpfs none /mnt 2>/dev/null").exit, Exit::Code(32));
    assert_ne!(shell(&node, &state, "echo 1 > /proc/sys/kernel/panic").exit, Exit::Code(0));
}

#[test]
fn a_program_starts_with_clean_signals_descriptors_and_the_asked_cpus() {
    let Some(state) = State::new("clean-start") else { return };
    // SAFETY: integers; a nice value is a thread's.
    assert_eq!(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 7) }, 0);
    let lab = state.lab();
    let mut spec = NodeSpec::new("one");
    spec.cpus = vec![0];
    let node = Node::start(&lab, spec).unwrap();
    let ran = shell(
        &node,
        &state,
        "grep -E '^(SigBlk|SigIgn)' /proc/self/status | cut -f2; ls /proc/self/fd | wc -l; nproc; ulimit -n",
    );
    let lines: Vec<&str> = ran.output.lines().collect();
    // 0, 1, 2 and the directory that ls reads.
    assert_eq!(lines[..4], ["0000000000000000", "0000000000000000", "4", "1"]);
    assert!(lines[4].parse::<u64>().unwrap() <= 65_536);
    assert_eq!(
        shell(&node, &state, "nice; ps -o cls= -p $$").output.split_whitespace().collect::<Vec<_>>(),
        ["0", "TS"]
    );
    let mut spec = ProgramSpec::new(["sh", "-c", "cat /proc/$$/timerslack_ns; ps -o sid= -p $$; echo $$"]);
    spec.timer_slack_ns = Some(500_000);
    spec.keep_caps = true;
    let output = run(&node, &state, spec).output;
    let words: Vec<&str> = output.split_ascii_whitespace().collect();
    assert_eq!(words[0], "500000");
    assert_eq!(words[1], words[2], "a program leads a session of its own");
}

/// hwloc takes the group's set of cores for those that a program may use, and MPI ends where none is left.
#[test]
fn a_nodes_set_of_cores_is_what_it_sees_of_them_not_the_hosts() {
    let Some(state) = State::new("cpuset") else { return };
    let lab = state.lab();
    let mut spec = NodeSpec::new("one");
    // Where there is only one CPU, the numbers are the same.
    spec.cpus = vec![std::thread::available_parallelism().map_or(0, |n| n.get() as u32 - 1)];
    spec.cores = vec![0];
    let node = Node::start(&lab, spec).unwrap();
    let files = "/sys/fs/cgroup/cpuset/cpuset.cpus /sys/fs/cgroup/cpuset/cpuset.effective_cpus /sys/fs/cgroup/cpuset.cpus.effective";
    let seen =
        shell(&node, &state, &format!("cat {files} 2>/dev/null | sort -u; cat /sys/devices/system/cpu/online")).output;
    assert!(seen == "0\n0\n" || seen == "0\n", "{seen}");
}

#[test]
fn limits_are_set_and_read_back() {
    let Some(state) = State::new("limits") else { return };
    let lab = state.lab();
    let mut spec = NodeSpec::new("one");
    spec.memory_bytes = Some(96 << 20);
    spec.quota = Some(Quota { quota_us: 20_000, period_us: 100_000 });
    let node = Node::start(&lab, spec).unwrap();
    assert_eq!(node.quota().unwrap(), Some(Quota { quota_us: 20_000, period_us: 100_000 }));
    let limit =
        shell(&node, &state, "cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max 2>/dev/null");
    assert_eq!(limit.output.trim().parse::<u64>().unwrap(), 96 << 20);
    // A node can't see the quota: it belongs to the mode, not to the machine that the node stands for.
    let seen =
        shell(&node, &state, "cat /sys/fs/cgroup/*/cpu.cfs_quota_us /sys/fs/cgroup/cpu.max 2>/dev/null | sort -u")
            .output;
    assert!(seen == "-1\n" || seen == "max 100000\n", "{seen}");

    // One that takes more memory than the limit is killed, and only it.
    let hog = shell(&node, &state, "exec python3 -c 'x = bytearray(200 << 20)'");
    assert_eq!(hog.exit, Exit::Signal(9));
    assert_eq!(shell(&node, &state, "exit 3").exit, Exit::Code(3));
    assert!(node.memory_usage().unwrap() <= 96 << 20);
    assert_eq!(node.oom_kills().unwrap(), 1);

    // A fifth of a core for half a second.
    let before = (node.cpu_usage_ns().unwrap(), node.throttled().unwrap());
    let start = Instant::now();
    shell(&node, &state, "timeout 0.5 sh -c 'while :; do :; done'");
    let used_ns = node.cpu_usage_ns().unwrap() - before.0;
    let share = used_ns as f64 / start.elapsed().as_nanos() as f64;
    assert!((0.05..0.4).contains(&share), "{share}");
    let after = node.throttled().unwrap();
    assert!(after.nr_throttled > before.1.nr_throttled && after.throttled_ns > before.1.throttled_ns, "{after:?}");

    node.set_quota(Some(Quota { quota_us: 5_000, period_us: 10_000 })).unwrap();
    assert_eq!(node.quota().unwrap(), Some(Quota { quota_us: 5_000, period_us: 10_000 }));
    node.set_quota(None).unwrap();
    assert_eq!(node.quota().unwrap(), None);
}

#[test]
fn signals_daemons_and_the_death_of_init() {
    let Some(state) = State::new("signals") else { return };
    let lab = state.lab();
    let node = node(&lab, "one");
    let program = node.start_program(ProgramSpec::new(["sleep", "1000"])).unwrap();
    let Some(Event::Started { pid_in_node, .. }) = node.next_event(Some(common::PATIENCE)).unwrap() else { panic!() };
    let host_pid = node.host_pid(pid_in_node).unwrap().unwrap();
    assert!(fs::read_to_string(format!("/proc/{host_pid}/cmdline")).unwrap().starts_with("sleep"));
    node.signal_program(program, libc::SIGINT).unwrap();
    assert_eq!(wait_exit(&node, program), Exit::Signal(libc::SIGINT));
    // Ended already: nobody minds.
    node.signal_program(program, libc::SIGINT).unwrap();

    // A daemon outlives its parent, belongs to init, and is reaped.
    shell(&node, &state, "(setsid sleep 0.2 &)");
    assert_eq!(node.cgroup_procs().unwrap().len(), 2);
    eventually("only init is left", Duration::from_secs(5), || node.cgroup_procs().unwrap() == [node.init_pid()]);

    // Whatever kills init kills the node.
    let mut spec = ProgramSpec::new(["sleep", "1000"]);
    spec.stdout = Output::Null;
    node.start_program(spec).unwrap();
    let init = node.init_pid();
    assert_eq!(Command::new("kill").args(["-9", &init.to_string()]).status().unwrap().code(), Some(0));
    eventually("gone", Duration::from_secs(5), || {
        matches!(node.next_event(Some(Duration::from_secs(5))).unwrap(), Some(Event::Gone))
    });
    eventually("an empty node", Duration::from_secs(5), || node.cgroup_procs().unwrap().is_empty());
    assert!(matches!(node.start_program(ProgramSpec::new(["true"])), Err(NodeError::Gone { .. })));
    node.stop().unwrap();
}

#[test]
fn roots_from_a_directory_and_from_an_archive() {
    let Some(state) = State::new("roots") else { return };
    let lab = state.lab();
    let root = state.0.join("root");
    fs::create_dir_all(root.join("bin")).unwrap();
    // A root without a C library: init is static, and so is this program.
    let source = state.0.join("hello.c");
    fs::write(&source, "#include <stdio.h>\nint main() { puts(\"static\"); return 5; }").unwrap();
    let compiled = Command::new("cc").arg("-static").arg("-o").arg(root.join("bin/hello")).arg(&source).status();
    if !compiled.is_ok_and(|status| status.success()) {
        diecast_quiet::skipped("roots: needs a C compiler");
        return;
    }
    let archive = state.0.join("root.tar");
    assert!(Command::new("tar").arg("-C").arg(&root).arg("-cf").arg(&archive).arg(".").status().unwrap().success());
    for (name, rootfs) in [("dir", Rootfs::Directory(root.clone())), ("tar", Rootfs::Tarball(archive))] {
        let node = Node::start(&lab, NodeSpec { rootfs, ..NodeSpec::new(name) }).unwrap();
        let ran = run(&node, &state, ProgramSpec::new(["hello"]));
        assert_eq!((ran.exit, ran.output.as_str()), (Exit::Code(5), "static\n"), "{name}");
    }
    // The directory itself is not written to, not even with mount points.
    let names: Vec<_> = fs::read_dir(&root).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["bin"]);
    let missing = Node::start(&lab, NodeSpec { rootfs: Rootfs::Directory("/no/root".into()), ..NodeSpec::new("bad") });
    assert!(matches!(missing, Err(NodeError::File { .. })));
}

#[test]
fn eight_nodes_start_in_parallel_and_leave_nothing() {
    diecast_quiet::look(eight_nodes);
}

fn eight_nodes() {
    let Some(state) = State::new("parallel") else { return };
    let lab = state.lab();
    let id = lab.id().to_owned();
    let start = Instant::now();
    let nodes = Node::start_all(&lab, (0..8).map(|i| NodeSpec::new(format!("n{i}"))).collect()).unwrap();
    println!("8 nodes in {:?}", start.elapsed());
    assert!(start.elapsed() < Duration::from_secs(5));
    assert!(matches!(Node::start(&lab, NodeSpec::new("n0")), Err(NodeError::Exists { .. })));

    let status = control_request(&lab.control_socket(), &serde_json::json!({"op": "ps"})).unwrap();
    assert_eq!(status["lab"], id);
    assert_eq!(status["nodes"].as_array().unwrap().len(), 8);
    let error = control_request(&lab.control_socket(), &serde_json::json!({"op": "dance"})).unwrap();
    assert!(error["error"].as_str().unwrap().contains("dance"));
    assert_eq!(fs::metadata(lab.control_socket()).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::metadata(lab.path()).unwrap().permissions().mode() & 0o777, 0o700);

    // A living lab is nobody's to clean.
    assert_eq!(diecast_host_node::clean_in(&state.0).unwrap(), Vec::<String>::new());
    assert_eq!(shell(&nodes[7], &state, "exit 0").exit, Exit::Code(0));

    let start = Instant::now();
    Node::stop_all(nodes).unwrap();
    assert_eq!(lab.status().nodes, []);
    let path = lab.path().to_owned();
    lab.remove().unwrap();
    println!("stopped in {:?}", start.elapsed());
    assert!(!path.exists());
    assert_eq!(common_leftovers(&id), Vec::<String>::new());
}

#[test]
fn a_start_that_fails_names_the_cause_and_leaves_nothing() {
    let Some(state) = State::new("start-fails") else { return };
    let lab = state.lab();
    // Lower than what any process needs: the kernel or runc refuses, and says so.
    let spec = NodeSpec { memory_bytes: Some(1), ..NodeSpec::new("tiny") };
    let error = Node::start(&lab, spec).unwrap_err();
    assert!(matches!(error, NodeError::Runc { .. } | NodeError::Init { .. }), "{error}");
    println!("{error}");
    assert!(matches!(Node::start(&lab, NodeSpec::new("../up")), Err(NodeError::Name { .. })));
    let id = lab.id().to_owned();
    drop(lab);
    assert_eq!(common_leftovers(&id), Vec::<String>::new());
}

#[test]
fn recorded_paths_and_processes_go_with_the_lab() {
    let Some(state) = State::new("record") else { return };
    let lab: LabDir = state.lab();
    let path = state.0.join("pinned");
    lab.record(&Resource::Path { path: path.clone() }).unwrap();
    fs::write(&path, "x").unwrap();
    let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
    let process = diecast_host_node::ProcessId::of(child.id()).unwrap();
    lab.record(&Resource::Process { process, what: "sleeper".into() }).unwrap();
    let removed = lab.remove().unwrap();
    assert!(!path.exists());
    assert!(removed.iter().any(|line| line.contains("sleeper")), "{removed:?}");
    assert!(!child.wait().unwrap().success());
}

/// Cgroups of a lab that still exist.
fn common_leftovers(id: &str) -> Vec<String> {
    let found = Command::new("find").args(["/sys/fs/cgroup", "-path", &format!("*/diecast/{id}*")]).output().unwrap();
    String::from_utf8(found.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// Set for a copy of this test process that runs in a mount namespace of its own: the state directory it uses.
const SUBMOUNT_STATE: &str = "DIECAST_TEST_SUBMOUNT";

/// Not a test of its own: the part of the next one that sees the additional mount.
#[test]
fn submount_helper() {
    let Some(path) = std::env::var_os(SUBMOUNT_STATE) else { return };
    let state = State(path.into());
    {
        let lab = state.lab();
        let mut spec = NodeSpec::new("one");
        spec.files = vec![NodeFile::text("/srv/sub/given", "given\n")];
        let node = Node::start(&lab, spec).unwrap();
        let ran = shell(
            &node,
            &state,
            "cat /srv/sub/installed /srv/sub/given; echo new > /srv/sub/installed; cat /srv/sub/installed",
        );
        assert_eq!(ran.output, "program\ngiven\nnew\n");
    }
    // The state directory, and with it the file system mounted at /srv, belongs to the test that called.
    std::mem::forget(state);
}

#[test]
fn a_file_system_mounted_below_the_hosts_root_is_part_of_a_nodes() {
    let Some(state) = State::new("submount") else { return };
    if fs::read_to_string("/proc/mounts").unwrap().contains(" /run tmpfs ") {
        diecast_quiet::skipped("submount: /run is no disk here, so a bind mount of it is none either");
        return;
    }
    let disk = state.0.join("disk");
    fs::create_dir_all(disk.join("sub")).unwrap();
    fs::write(disk.join("sub/installed"), "program\n").unwrap();
    let script = format!("mount --bind {} /srv && exec \"$0\" --exact submount_helper --nocapture", disk.display());
    let helper = Command::new("unshare")
        .args(["--mount", "sh", "-c", &script])
        .arg(std::env::current_exe().unwrap())
        .env(SUBMOUNT_STATE, &state.0)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&helper.stdout);
    assert!(helper.status.success(), "{said}{}", String::from_utf8_lossy(&helper.stderr));
    assert_eq!(
        fs::read_to_string(disk.join("sub/installed")).unwrap(),
        "program\n",
        "the host's own file is as it was"
    );
    assert!(!disk.join("sub/given").exists());
}

#[test]
fn a_node_sees_the_cores_that_it_was_given() {
    let Some(state) = State::new("cores") else { return };
    let lab = state.lab();
    let spec = NodeSpec { cores: (0..5).collect(), ..NodeSpec::new("one") };
    let node = Node::start(&lab, spec).unwrap();
    let script = "getconf _NPROCESSORS_ONLN; getconf _NPROCESSORS_CONF; grep -c ^processor /proc/cpuinfo; \
                  cd /sys/devices/system; cat cpu/online cpu/possible cpu/present cpu/offline; ls -d cpu/cpu[0-9]* | wc -l; \
                  cat cpu/cpu4/topology/core_id cpu/cpu4/topology/core_siblings_list; test ! -d node/node0 || cat node/node0/cpulist";
    let output = shell(&node, &state, script).output;
    let expected = "5\n5\n5\n0-4\n0-4\n0-4\n\n5\n4\n0-4\n";
    assert!(output == expected || output == format!("{expected}0-4\n"), "{output}");
    node.stop().unwrap();
    lab.remove().unwrap();
}
