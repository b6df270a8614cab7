//! What Linux does with cores that have nothing to do.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};

/// A request to Linux, for as long as the file is open, of the longest time that a core may take to wake up, in µs.
pub const LATENCY_REQUEST: &str = "/dev/cpu_dma_latency";
const DRIVER: &str = "/sys/devices/system/cpu/cpuidle/current_driver";

/// The kernel's driver for idle cores; `None` when it has none, so that they halt whatever is asked.
pub fn driver() -> Option<String> {
    let name = std::fs::read_to_string(DRIVER).ok()?;
    Some(name.trim().to_owned()).filter(|name| !matches!(name.as_str(), "" | "none"))
}

/// Has idle cores poll for work until the file is closed. Without a [`driver`] it changes nothing.
pub fn have_cores_poll() -> io::Result<File> {
    const AT_ONCE_US: i32 = 0;
    let mut file = OpenOptions::new().write(true).open(LATENCY_REQUEST)?;
    file.write_all(&AT_ONCE_US.to_ne_bytes())?;
    Ok(file)
}
