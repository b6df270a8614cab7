//! Loads an object of BPF programs that a crate's build script compiled with `compile.rs`, and attaches them by links:
//! when the process dies in any way, the kernel removes everything.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};

use libbpf_rs::{Link, MapCore, MapHandle, Object, ObjectBuilder, OpenMapMut, ProgramInput, ProgramMut};

/// An object's bytes with the alignment that ELF wants; [`object!`] makes one.
#[repr(C, align(8))]
#[derive(Debug)]
pub struct Aligned<T: ?Sized>(pub T);

/// The object of this name that the crate's build script left, as a `&'static [u8]`.
#[macro_export]
macro_rules! object {
    ($name:literal) => {{
        static OBJECT: &$crate::Aligned<[u8]> = &$crate::Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/", $name)));
        &OBJECT.0
    }};
}

/// The kernel or libbpf refused, or the object lacks what was asked for.
#[derive(Debug, thiserror::Error)]
#[error("can't {action} the BPF programs for {purpose}: {error}")]
pub struct BpfError {
    /// What was tried.
    pub action: &'static str,
    /// What the programs are for.
    pub purpose: &'static str,
    /// Why it failed.
    pub error: libbpf_rs::Error,
}

/// What is to be loaded.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// From [`object!`].
    pub object: &'static [u8],
    /// What the programs are for, as a message tells it: "can't load the BPF programs for ...".
    pub purpose: &'static str,
    /// All constants of the programs, as they lie in memory; empty where there are none.
    pub constants: &'a [u8],
    /// Programs that are left out.
    pub without: &'a [&'a str],
    /// Maps that get room for so many entries.
    pub room: &'a [(&'a str, u32)],
    /// Maps that others have made, which these programs use too.
    pub shared: &'a [(&'a str, BorrowedFd<'a>)],
}

/// Loaded programs, and the links of those that were attached for as long as this lives.
pub struct Programs {
    purpose: &'static str,
    /// Order matters: detach, then close the object.
    links: Vec<Link>,
    object: Object,
}

impl std::fmt::Debug for Programs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Programs").field("purpose", &self.purpose).finish_non_exhaustive()
    }
}

impl Programs {
    /// Loads them all. Needs root or CAP_BPF, and what their kinds need beside it.
    pub fn load(source: Source<'_>) -> Result<Programs, BpfError> {
        let Source { object, purpose, constants, without, room, shared } = source;
        let failed = |action| move |error| BpfError { action, purpose, error };
        // What libbpf prints while it tries is in the error.
        libbpf_rs::set_print(None);
        let mut object = ObjectBuilder::default().open_memory(object).map_err(failed("open"))?;
        if !constants.is_empty() {
            let mut data = object.maps_mut().find(|m| m.name().to_string_lossy().ends_with(".rodata"));
            let data = data.as_mut().and_then(|m| m.initial_value_mut()).filter(|d| d.len() == constants.len());
            data.ok_or_else(absent).map_err(failed("configure"))?.copy_from_slice(constants);
        }
        for mut program in object.progs_mut().filter(|p| without.iter().any(|name| p.name() == *name)) {
            program.set_autoload(false);
        }
        let mut with = |name: &str, set: &dyn Fn(&mut OpenMapMut<'_>) -> libbpf_rs::Result<()>| {
            let mut map =
                object.maps_mut().find(|m| m.name() == name).ok_or_else(absent).map_err(failed("configure"))?;
            set(&mut map).map_err(failed("configure"))
        };
        for (name, entries) in room {
            with(name, &|map| map.set_max_entries(*entries))?;
        }
        for (name, other) in shared {
            with(name, &|map| map.reuse_fd(*other))?;
        }
        let object = object.load().map_err(failed("load"))?;
        Ok(Programs { purpose, links: Vec::new(), object })
    }

    /// Attaches these to the tracepoints that their sections name.
    pub fn attach_traced(&mut self, names: &[&str]) -> Result<(), BpfError> {
        for name in names {
            let link = self.program(name)?.attach_trace().map_err(|e| self.error("attach", e))?;
            self.links.push(link);
        }
        Ok(())
    }

    /// Attaches one at a cgroup v2, beside those of others: a link always attaches with BPF_F_ALLOW_MULTI.
    pub fn attach_cgroup(&mut self, name: &str, cgroup: RawFd) -> Result<(), BpfError> {
        let link = self.program(name)?.attach_cgroup(cgroup).map_err(|e| self.error("attach", e))?;
        self.links.push(link);
        Ok(())
    }

    /// Has one run at each overflow of a perf event, which belongs to the link from then on.
    pub fn on_overflow(&self, name: &str, event: OwnedFd) -> Result<Link, BpfError> {
        self.program(name)?.attach_perf_event(event.into_raw_fd()).map_err(|e| self.error("attach", e))
    }

    /// Keeps a link until these programs end.
    pub fn keep(&mut self, link: Link) {
        self.links.push(link);
    }

    /// Runs one once, here and now, on no input.
    pub fn run(&self, name: &str) -> Result<(), BpfError> {
        self.program(name)?.test_run(ProgramInput::default()).map(drop).map_err(|e| self.error("run", e))
    }

    /// A descriptor of one, which lives on when these programs end.
    pub fn descriptor(&self, name: &str) -> Result<OwnedFd, BpfError> {
        self.program(name)?.as_fd().try_clone_to_owned().map_err(|e| self.error("open", e.into()))
    }

    /// One of their maps, which lives on when these programs end.
    pub fn map(&self, name: &str) -> Result<MapHandle, BpfError> {
        let found = self.object.maps().find(|m| m.name() == name);
        let found = found.ok_or_else(|| self.error("find the maps of", absent()))?;
        MapHandle::try_from(&found).map_err(|e| self.error("open the maps of", e))
    }

    /// An error of this purpose.
    pub fn error(&self, action: &'static str, error: libbpf_rs::Error) -> BpfError {
        BpfError { action, purpose: self.purpose, error }
    }

    fn program(&self, name: &str) -> Result<ProgramMut<'_>, BpfError> {
        self.object.progs_mut().find(|p| p.name() == name).ok_or_else(|| self.error("find", absent()))
    }
}

/// The object lacks it.
pub fn absent() -> libbpf_rs::Error {
    io::Error::new(io::ErrorKind::NotFound, "not in the object").into()
}
