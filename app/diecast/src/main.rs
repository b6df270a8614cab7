//! Flags, help and dispatch; nothing else.
#![forbid(unsafe_code)]

mod cli;
mod commands;
mod live;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    diecast_host_run::keep_statuses();
    let status = match cli::Cli::parse().command {
        cli::Sub::Frame(a) => commands::frame(a),
        cli::Sub::Run(a) => commands::run(&a),
        cli::Sub::Validate(a) => commands::validate(&a),
        cli::Sub::Compare(a) => commands::compare(&a.directories, a.html.as_deref(), a.json),
        cli::Sub::Check(a) => commands::check(&a.catalog),
        cli::Sub::Plan(a) => commands::plan(&a),
        cli::Sub::Doctor(a) => commands::doctor(a.json),
        cli::Sub::Catalog { command: cli::CatalogSub::Host(a) } => commands::catalog_host(&a.folder, a.json),
        cli::Sub::Clean => commands::clean(),
        cli::Sub::Ps(a) => commands::ps(a.json),
        cli::Sub::Link(a) => live::link(a),
        cli::Sub::Clock(a) => live::clock(&a),
        cli::Sub::Pause(a) => live::pace(&a, &diecast_host_run::Request::Pause),
        cli::Sub::Resume(a) => live::pace(&a, &diecast_host_run::Request::Resume),
        cli::Sub::Retime(a) => live::pace(&a.pace, &diecast_host_run::Request::Retime { tdf: a.tdf.to_string() }),
        cli::Sub::Capture(a) => live::capture(&a),
        cli::Sub::Replay(a) => live::replay(&a),
    };
    match status {
        Ok(code) => ExitCode::from(code),
        Err(fault) => {
            eprintln!("diecast: {}", fault.text);
            ExitCode::from(fault.status)
        }
    }
}
