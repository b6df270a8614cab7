//! Putting a plan together.

use std::collections::BTreeMap;

use diecast_core_experiment::{Clock, Command, Experiment, Mode, Node, ParameterValue, SpeedPpm};
use diecast_core_net::NetSpec;
use diecast_core_vtime::{Tdf, VirtSpan};

use crate::capacity::{Factors, Sharing, allot, factors, memory_bytes};
use crate::model::{
    HOST_ADDRESS, Plan, PlannedFault, PlannedFile, PlannedLoad, PlannedNode, PlannedProgram, PlannedWay,
    PlannedWorkload, Role, WayFrom,
};
use crate::network::{changes, net, node_of};
use crate::options::{HostFacts, PlanOptions, Tsc};
use crate::refusal::{Reason, Refusal};

/// Seed when the catalog has none.
const SEED_DEFAULT: u64 = 1;

/// The experiment with a speed for each score, the type's over the host's, and a note on each.
fn with_speeds(experiment: &Experiment, host: &HostFacts) -> Result<(Experiment, Vec<String>), Refusal> {
    let mut experiment = experiment.clone();
    let mut notes = Vec::new();
    for i in 0..experiment.machine_types.len() {
        let machine = &experiment.machine_types[i];
        let Some(score_milli) = machine.score_milli else { continue };
        let Some(host_milli) = host.score_milli.filter(|milli| *milli > 0) else {
            let reason = Reason::NoScore { machine_type: machine.name.clone() };
            return Err(Refusal::at(&experiment, machine.speed_at, reason, "give it a speed"));
        };
        let ppm = (u128::from(score_milli) * 1_000_000).div_ceil(u128::from(host_milli));
        let speed_ppm = SpeedPpm(u64::try_from(ppm).unwrap_or(u64::MAX));
        let (score, of) = (score_milli as f64 / 1e3, host_milli as f64 / 1e3);
        notes.push(format!(
            "machine type {}: score {score:.0} is speed {speed_ppm} on this host, whose score is {of:.0}",
            machine.name
        ));
        experiment.machine_types[i].speed_ppm = speed_ppm;
    }
    Ok((experiment, notes))
}

/// The plan of an experiment on a host, or why there is none. The same arguments give the same plan.
pub fn plan(experiment: &Experiment, host: &HostFacts, options: &PlanOptions) -> Result<Plan, Refusal> {
    let factors = factors(options)?;
    let (experiment, of_scores) = &with_speeds(experiment, host)?;
    let Sharing { allotments, cpus, mut notes } = allot(experiment, host, options, &factors)?;
    notes.extend(of_scores.iter().cloned());
    let seed = seed(experiment, &mut notes);
    let net = net(experiment, seed).map_err(|e| {
        let hint = "the limits of the emulator are in the reference";
        Refusal::at(experiment, experiment.topology.at, Reason::Net(e.to_string()), hint)
    })?;
    let mut nics: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
    for (ix, nic) in (0..).zip(&net.nodes) {
        nics.entry(node_of(&nic.name)).or_default().push(ix);
    }
    let mut nodes = Vec::with_capacity(allotments.len());
    for ((node, allotment), address) in experiment.nodes.iter().zip(allotments).zip(&net.nodes) {
        let machine = experiment.machine_type_of(node);
        nodes.push(PlannedNode {
            name: node.name.clone(),
            group: node.group.clone(),
            machine_type: machine.name.clone(),
            role: if experiment.generates_load(&node.name) { Role::Load } else { Role::Server },
            cores: machine.cores,
            speed_ppm: factors.speed_of(experiment, node),
            share: allotment.share,
            cpus: allotment.cpus,
            memory_bytes: machine.memory_bytes,
            mac: address.mac,
            ipv4: address.ipv4,
            ipv6: address.ipv6,
            nics: nics.remove(node.name.as_str()).unwrap_or_default(),
            envelope: options.mode.has_envelope(),
            metered: options.mode.has_envelope(),
            quota: allotment.quota,
            clock: if options.mode.has_envelope() { node.clock } else { Clock::default() },
            programs: programs(experiment, node),
            load: load(experiment, node),
        });
    }
    note_mode(&mut notes, &factors, host, &nodes);
    note_cores(&mut notes, &nodes);
    if !options.mode.has_envelope() && experiment.nodes.iter().any(|n| !n.clock.is_right()) {
        notes.push(format!("mode {} has no envelope: every node has the host's clock", options.mode));
    }
    let workload = &experiment.workload;
    let virtual_ns = VirtSpan(workload.warm_up_ns.saturating_add(workload.measure_ns));
    let mut plan = Plan {
        lab: experiment.name.clone(),
        catalog: experiment.file.clone(),
        mode: options.mode,
        tdf: factors.tdf,
        scale: factors.scale,
        speed: factors.speed,
        seed,
        grain_ns: options.grain_ns,
        tsc: if options.mode.has_envelope() { options.tsc } else { Tsc::Native },
        call_sites: if options.mode.has_envelope() { options.call_sites } else { 0 },
        nodes,
        workload: PlannedWorkload {
            parameters: workload.parameters.iter().map(|p| (p.name.clone(), p.text.clone())).collect(),
            on: workload.on.clone(),
            warm_up_ns: VirtSpan(workload.warm_up_ns),
            measure_ns: VirtSpan(workload.measure_ns),
        },
        faults: faults(experiment, &net),
        gateway: gateway(experiment, &net),
        metrics: experiment.metrics.clone(),
        net,
        cpus,
        core_limit: options.core_limit,
        memory_bytes: memory_bytes(experiment),
        host: host.clone(),
        virtual_ns,
        expected_real_ns: factors.tdf.to_real(virtual_ns),
        notes,
    };
    plan.notes.extend(plan.not_probed());
    Ok(plan)
}

fn seed(experiment: &Experiment, notes: &mut Vec<String>) -> u64 {
    match experiment.parameter("seed").map(|p| &p.value) {
        Some(ParameterValue::Integer(seed)) => *seed,
        _ => {
            notes.push(format!("no parameter 'seed' with a whole number: random loss uses seed {SEED_DEFAULT}"));
            SEED_DEFAULT
        }
    }
}

fn faults(experiment: &Experiment, net: &NetSpec) -> Vec<PlannedFault> {
    let planned = |fault: &diecast_core_experiment::Fault| PlannedFault {
        at_ns: VirtSpan(fault.at_ns),
        text: fault.change.to_string(),
        changes: changes(net, &fault.change),
    };
    experiment.faults.iter().map(planned).collect()
}

fn gateway(experiment: &Experiment, net: &NetSpec) -> Vec<PlannedWay> {
    let mut ways = Vec::new();
    for p in &experiment.gateway.publish {
        let Some(node) = net.nodes.iter().find(|n| n.name == p.node) else { continue };
        ways.push(PlannedWay {
            node: p.node.clone(),
            from: WayFrom::Host,
            protocol: p.protocol,
            in_node: (node.ipv4, p.port).into(),
            on_host: p.host,
            line: p.at.line,
            column: p.at.column,
        });
    }
    for s in &experiment.gateway.reach {
        ways.extend(s.on.iter().map(|node| PlannedWay {
            node: node.clone(),
            from: WayFrom::Node,
            protocol: s.protocol,
            in_node: (HOST_ADDRESS, s.port).into(),
            on_host: s.host,
            line: s.at.line,
            column: s.at.column,
        }));
    }
    ways
}

/// Machine types with more cores than the host has CPUs for.
fn note_cores(notes: &mut Vec<String>, nodes: &[PlannedNode]) {
    for n in nodes.iter().filter(|n| n.cores as usize > n.cpus.len()) {
        let (name, cores, cpus) = (&n.machine_type, n.cores, n.cpus.len());
        let note = match n.envelope {
            true => {
                format!("machine type '{name}' has {cores} cores on {cpus} CPUs, on which they wait for each other")
            }
            false => {
                format!("machine type '{name}' has {cores} cores; its programs see the {cpus} CPUs that they run on")
            }
        };
        if !notes.contains(&note) {
            notes.push(note);
        }
    }
}

fn note_mode(notes: &mut Vec<String>, factors: &Factors, host: &HostFacts, nodes: &[PlannedNode]) {
    let cores: usize = nodes.iter().map(|n| n.cpus.len()).sum();
    if factors.speed != SpeedPpm::ONE {
        notes
            .push(format!("nodes that generate no load have {} times the speed of their machine types", factors.speed));
    }
    match (factors.mode, factors.scale) {
        (Mode::Native, _) if cores == host.cpus.len() => {
            notes.push("every CPU has a node: the emulator takes its time from them".to_owned());
        }
        (Mode::Diecast, Some(scale)) if scale.as_tdf() != factors.tdf => {
            notes.push(format!("TDF {} is above the scale factor {scale}: less of the host is used", factors.tdf));
        }
        (Mode::Diecast, _) if factors.tdf == Tdf::ONE => {
            notes.push("TDF 1: nothing is scaled, this is the baseline".to_owned());
        }
        _ => {}
    }
}

fn programs(experiment: &Experiment, node: &Node) -> Vec<PlannedProgram> {
    let here = experiment.programs.iter().enumerate().filter(|(_, p)| p.on.contains(&node.name));
    here.map(|(order, program)| {
        let PlannedLoad { argv, env, cwd, files, line, column } = resolve(&program.command, node);
        let order = u32::try_from(order).unwrap_or(u32::MAX);
        PlannedProgram { order, argv, env, cwd, files, ready: program.ready.clone(), line, column }
    })
    .collect()
}

fn load(experiment: &Experiment, node: &Node) -> Option<PlannedLoad> {
    experiment.generates_load(&node.name).then(|| resolve(&experiment.workload.command, node))
}

/// A command with the node's own name and index put in.
fn resolve(command: &Command, node: &Node) -> PlannedLoad {
    let file = |f: &diecast_core_experiment::NodeFile| PlannedFile {
        path: f.path.clone(),
        source: f.source.clone(),
        line: f.at.line,
        column: f.at.column,
    };
    PlannedLoad {
        argv: command.argv.iter().map(|t| t.for_node(node)).collect(),
        env: command.env.iter().map(|(name, value)| (name.clone(), value.for_node(node))).collect(),
        cwd: command.cwd.clone(),
        files: command.files.iter().map(file).collect(),
        line: command.at.line,
        column: command.at.column,
    }
}
