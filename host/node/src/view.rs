//! What a node sees of its cores in /proc and /sys: files made from those of the host's first core.

use crate::error::{NodeError, file};
use std::fs;
use std::path::{Path, PathBuf};

const SYS_CPU: &str = "/sys/devices/system/cpu";
const SYS_NODE: &str = "/sys/devices/system/node";
/// Caches from this level on belong to all cores.
const SHARED_LEVEL: u32 = 3;

/// A file or directory in place of one that the node would see otherwise.
#[derive(Debug)]
pub(crate) struct Cover {
    pub source: PathBuf,
    pub destination: PathBuf,
}

/// Writes the files below `directory` for cores with these numbers; nothing where there are none.
pub(crate) fn write(directory: &Path, cores: &[u32]) -> Result<Vec<Cover>, NodeError> {
    if cores.is_empty() {
        return Ok(Vec::new());
    }
    let mut covers = Vec::new();
    let mut cover = |name: &str, destination: PathBuf| {
        let source = directory.join(name);
        covers.push(Cover { source: source.clone(), destination });
        source
    };
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    put(&cover("cpuinfo", "/proc/cpuinfo".into()), &cpuinfo(&text, cores))?;
    write_cpus(&cover("cpu", SYS_CPU.into()), cores)?;
    // One memory node has all cores; what the host has beyond it has none.
    for entry in fs::read_dir(SYS_NODE).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with("node") || !entry.path().is_dir() {
            continue;
        }
        let own = if name == "node0" { cores } else { &[] };
        put(&cover(&format!("{name}.cpulist"), entry.path().join("cpulist")), &line(&list(own)))?;
        put(&cover(&format!("{name}.cpumap"), entry.path().join("cpumap")), &line(&map(own)))?;
    }
    Ok(covers)
}

/// The directory of cores: lists, and one directory a core with its topology and caches.
fn write_cpus(directory: &Path, cores: &[u32]) -> Result<(), NodeError> {
    for name in ["online", "possible", "present"] {
        put(&directory.join(name), &line(&list(cores)))?;
    }
    put(&directory.join("offline"), "\n")?;
    put(&directory.join("isolated"), "\n")?;
    put(&directory.join("kernel_max"), &line(&cores.iter().max().unwrap_or(&0).to_string()))?;
    let host = Path::new(SYS_CPU).join("cpu0");
    for core in cores {
        let own = directory.join(format!("cpu{core}"));
        let (alone, all) = (std::slice::from_ref(core), cores);
        for (name, text) in [("core_id", core.to_string()), ("physical_package_id", "0".into()), ("die_id", "0".into())]
        {
            put(&own.join("topology").join(name), &line(&text))?;
        }
        let groups = [("thread_siblings", alone), ("core_cpus", alone), ("core_siblings", all), ("package_cpus", all)];
        for (name, group) in groups {
            put_group(&own.join("topology"), name, group)?;
        }
        if *core != 0 {
            put(&own.join("online"), "1\n")?;
        }
        for cache in fs::read_dir(host.join("cache")).into_iter().flatten().flatten().filter(|e| e.path().is_dir()) {
            write_cache(&cache.path(), &own.join("cache").join(cache.file_name()), alone, all)?;
        }
    }
    Ok(())
}

/// A cache as the host has it, shared by all cores or by none.
fn write_cache(host: &Path, own: &Path, alone: &[u32], all: &[u32]) -> Result<(), NodeError> {
    for entry in fs::read_dir(host).into_iter().flatten().flatten() {
        let name = entry.file_name();
        if !name.to_string_lossy().starts_with("shared_cpu")
            && let Ok(text) = fs::read_to_string(entry.path())
        {
            put(&own.join(&name), &text)?;
        }
    }
    let level = fs::read_to_string(host.join("level")).ok().and_then(|t| t.trim().parse().ok());
    let group = if level.is_some_and(|level: u32| level >= SHARED_LEVEL) { all } else { alone };
    put(&own.join("shared_cpu_list"), &line(&list(group)))?;
    put(&own.join("shared_cpu_map"), &line(&map(group)))
}

fn put_group(directory: &Path, name: &str, cores: &[u32]) -> Result<(), NodeError> {
    put(&directory.join(name), &line(&map(cores)))?;
    put(&directory.join(format!("{name}_list")), &line(&list(cores)))
}

fn put(path: &Path, text: &str) -> Result<(), NodeError> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(file("create", parent))?;
    }
    fs::write(path, text).map_err(file("write", path))
}

pub(crate) fn line(text: &str) -> String {
    format!("{text}\n")
}

/// The host's first block once a core, with the numbers that tell cores apart.
fn cpuinfo(host: &str, cores: &[u32]) -> String {
    let block = host.split("\n\n").next().unwrap_or_default();
    let mut out = String::new();
    for core in cores {
        for text in block.lines() {
            let name = text.split('\t').next().unwrap_or_default().trim_end_matches([':', ' ']);
            let value = match name {
                "processor" | "core id" | "apicid" | "initial apicid" => core.to_string(),
                "physical id" => "0".into(),
                "siblings" | "cpu cores" => cores.len().to_string(),
                _ => {
                    out += &line(text);
                    continue;
                }
            };
            let key = text.split(':').next().unwrap_or_default();
            out += &format!("{key}: {value}\n");
        }
        out.push('\n');
    }
    out
}

/// As the kernel writes it: 0-3,7.
pub(crate) fn list(cores: &[u32]) -> String {
    let mut cores = cores.to_vec();
    cores.sort_unstable();
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for core in cores {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == core => *last = core,
            _ => runs.push((core, core)),
        }
    }
    let text = |(first, last): &(u32, u32)| if first == last { first.to_string() } else { format!("{first}-{last}") };
    runs.iter().map(text).collect::<Vec<_>>().join(",")
}

/// As the kernel writes it: hexadecimal words of 32 cores, the highest first.
fn map(cores: &[u32]) -> String {
    let highest = cores.iter().max().copied().unwrap_or(0) / 32;
    let word = |w: u32| cores.iter().filter(|c| *c / 32 == w).fold(0u32, |bits, c| bits | 1 << (c % 32));
    (0..=highest).rev().map(|w| format!("{:08x}", word(w))).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_maps_are_the_kernels() {
        assert_eq!((list(&[]), map(&[])), (String::new(), "00000000".into()));
        assert_eq!((list(&[0]), map(&[0])), ("0".into(), "00000001".into()));
        assert_eq!((list(&[3, 0, 1, 2, 7, 33]), map(&[3, 0, 33])), ("0-3,7,33".into(), "00000002,00000009".into()));
    }

    #[test]
    fn cpuinfo_has_a_block_a_core() {
        let host =
            "processor\t: 0\nmodel name\t: X: Y\nsiblings\t: 2\ncore id\t\t: 9\n\nprocessor\t: 1\nmodel name\t: Z\n\n";
        let got = cpuinfo(host, &[0, 1]);
        let block = |i| format!("processor\t: {i}\nmodel name\t: X: Y\nsiblings\t: 2\ncore id\t\t: {i}\n\n");
        assert_eq!(got, block(0) + &block(1));
    }
}
