//! What a node sees of its cores in /proc and /sys: files made from those of the host's first core.

use crate::error::{NodeError, file};
use diecast_core_procfs::{self as procfs, Sink};
use std::fs;
use std::path::{Path, PathBuf};

pub(crate) const SYS_CPU: &str = "/sys/devices/system/cpu";
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
    let mut cpuinfo = Text(Vec::new());
    let host = fs::read("/proc/cpuinfo").unwrap_or_default();
    procfs::cpuinfo(&host, &mut cpuinfo, cores.iter().copied(), cores.len() as u32);
    let own = Cover { source: directory.join("cpuinfo"), destination: "/proc/cpuinfo".into() };
    put(&own.source, &cpuinfo.0)?;
    let mut covers = write_sys(directory, cores)?;
    covers.push(own);
    Ok(covers)
}

/// The part of them that is in /sys.
pub(crate) fn write_sys(directory: &Path, cores: &[u32]) -> Result<Vec<Cover>, NodeError> {
    let mut covers = Vec::new();
    let mut cover = |name: &str, destination: PathBuf| {
        let source = directory.join(name);
        covers.push(Cover { source: source.clone(), destination });
        source
    };
    write_cpus(&cover("cpu", SYS_CPU.into()), cores)?;
    // One memory node has all cores; what the host has beyond it has none.
    for entry in fs::read_dir(SYS_NODE).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with("node") || !entry.path().is_dir() {
            continue;
        }
        let own = if name == "node0" { cores } else { &[] };
        put(&cover(&format!("{name}.cpulist"), entry.path().join("cpulist")), &line(&list(own)))?;
        put(&cover(&format!("{name}.cpumap"), entry.path().join("cpumap")), &line(&map(own, cores)))?;
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
    // What the kernel was built for, not what there is: tools make room for as many.
    let built = fs::read_to_string(Path::new(SYS_CPU).join("kernel_max")).ok().and_then(|t| t.trim().parse().ok());
    let highest = cores.iter().max().copied().unwrap_or(0);
    put(&directory.join("kernel_max"), &line(&built.unwrap_or(0).max(highest).to_string()))?;
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
            put_group(&own.join("topology"), name, group, all)?;
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
    put(&own.join("shared_cpu_map"), &line(&map(group, all)))
}

fn put_group(directory: &Path, name: &str, group: &[u32], all: &[u32]) -> Result<(), NodeError> {
    put(&directory.join(name), &line(&map(group, all)))?;
    put(&directory.join(format!("{name}_list")), &line(&list(group)))
}

struct Text(Vec<u8>);

impl Sink for Text {
    fn push(&mut self, byte: u8) {
        self.0.push(byte);
    }
}

fn put(path: &Path, text: &(impl AsRef<[u8]> + ?Sized)) -> Result<(), NodeError> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(file("create", parent))?;
    }
    fs::write(path, text).map_err(file("write", path))
}

pub(crate) fn line(text: &str) -> String {
    format!("{text}\n")
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

/// As the kernel writes it: hexadecimal words of 32 cores, the highest first, the first no longer than `all` need it.
fn map(group: &[u32], all: &[u32]) -> String {
    let highest = all.iter().max().copied().unwrap_or(0);
    let word = |w: u32| group.iter().filter(|c| *c / 32 == w).fold(0u32, |bits, c| bits | 1 << (c % 32));
    let digits = |w: u32| if w == highest / 32 { highest as usize % 32 / 4 + 1 } else { 8 };
    (0..=highest / 32).rev().map(|w| format!("{:0width$x}", word(w), width = digits(w))).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_maps_are_the_kernels() {
        let all: Vec<u32> = (0..34).collect();
        assert_eq!((list(&[]), map(&[], &[0, 1])), (String::new(), "0".into()));
        assert_eq!((list(&[0]), map(&[0], &all[..5])), ("0".into(), "01".into()));
        assert_eq!(map(&all[..32], &all[..32]), "ffffffff");
        assert_eq!((list(&[3, 0, 1, 2, 7, 33]), map(&[3, 0, 33], &all)), ("0-3,7,33".into(), "2,00000009".into()));
    }

    /// Of a host whose only memory node has all cores.
    #[test]
    fn the_hosts_own_map_is_written_the_same() {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let possible = read("/sys/devices/system/cpu/possible");
        let last: u32 = possible.trim().rsplit('-').next().and_then(|n| n.parse().ok()).unwrap_or(0);
        let all: Vec<u32> = (0..=last).collect();
        let (cpulist, cpumap) =
            (read("/sys/devices/system/node/node0/cpulist"), read("/sys/devices/system/node/node0/cpumap"));
        if cpulist == line(&list(&all)) {
            assert_eq!(line(&map(&all, &all)), cpumap);
        }
    }
}
