//! Where a run is, for the person who waits: a live line on a terminal, plain lines elsewhere.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// Progress on stderr.
pub struct Progress {
    bar: Option<ProgressBar>,
    quiet: bool,
    label: String,
}

impl Progress {
    /// `label` names the run in front of each line; quiet prints nothing.
    pub fn new(label: &str, quiet: bool) -> Progress {
        let bar = (!quiet && std::io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        });
        Progress { bar, quiet, label: label.to_owned() }
    }

    /// A new phase: printed once.
    pub fn phase(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.set_message(format!("{}: {text}", self.label)),
            None if !self.quiet => eprintln!("{}: {text}", self.label),
            None => {}
        }
    }

    /// How far a phase is: only where a line can be rewritten.
    pub fn tick(&self, phase: &str, virtual_s: f64, total_s: f64, real_left_s: f64) {
        if let Some(bar) = &self.bar {
            bar.set_message(format!(
                "{}: {phase}, {virtual_s:.1} of {total_s:.1} s virtual, {real_left_s:.0} s real left",
                self.label
            ));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
