//! Writes man pages and shell completions for a package.
//!
//! `cargo run --example pages -- DIRECTORY` generates the pages from the definition of the command
//! line, so that both agree.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;

use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

fn main() -> io::Result<()> {
    let Some(directory) = std::env::args_os().nth(1) else {
        return Err(io::Error::other("where to? pages DIRECTORY"));
    };
    let directory = Path::new(&directory);
    fs::create_dir_all(directory)?;
    let version = env!("CARGO_PKG_VERSION");
    let mut command = server::cli::command().version(version).disable_help_subcommand(true);
    command.build();
    manuals(&command, "localdns", directory)?;
    for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
        clap_complete::generate_to(shell, &mut command, "localdns", directory)?;
    }
    Ok(())
}

/// Writes the man page of a command and those of its subcommands, named as git names its pages:
/// localdns-node-run.8.
fn manuals(command: &Command, name: &str, directory: &Path) -> io::Result<()> {
    let mut file = File::create(directory.join(format!("{name}.8")))?;
    let page = Man::new(command.clone()).title(name.to_uppercase()).section("8").manual("localdns");
    page.render_title(&mut file)?;
    page.render_name_section(&mut file)?;
    page.render_synopsis_section(&mut file)?;
    page.render_description_section(&mut file)?;
    page.render_options_section(&mut file)?;
    if command.has_subcommands() {
        page.render_subcommands_section(&mut file)?;
    }
    if name == "localdns" {
        for (title, rows) in SECTIONS {
            section(title, rows).to_writer(&mut file)?;
        }
    }
    file.flush()?;
    for inner in command.get_subcommands().filter(|inner| inner.get_name() != "help") {
        manuals(inner, &format!("{name}-{}", inner.get_name()), directory)?;
    }
    Ok(())
}

fn section(title: &str, rows: &[(&str, &str)]) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", [title]);
    for (term, text) in rows {
        roff.control("TP", []);
        roff.text([roman(*term)]);
        roff.text([roman(*text)]);
    }
    roff
}

/// Sections of the man page that cannot be generated from the command line.
const SECTIONS: &[(&str, &[(&str, &str)])] = &[
    (
        "FLAGS AS IN GO",
        &[(
            "-flag and --flag are the same",
            "A value follows as =VALUE or as the next argument. -p is -dns.port.",
        )],
    ),
    (
        "SIGNALS",
        &[
            (
                "SIGTERM, SIGINT",
                "/ready fails, the server serves for the time of lameduck, then answers queries in flight for up to 5 s.",
            ),
            ("SIGINT after one of these, SIGQUIT", "The process ends at once."),
            ("SIGHUP, SIGUSR1", "The Corefile is read again, and served if it can be."),
        ],
    ),
    (
        "EXIT STATUS",
        &[
            ("0", "It was stopped, or the command succeeded."),
            (
                "1",
                "The command line, the Corefile or an address cannot be used, or the server cannot continue. One error on standard \
                 error has the problem and the remedy.",
            ),
            ("2", "A second SIGINT."),
        ],
    ),
    (
        "FILES",
        &[
            ("/etc/localdns/Corefile", "What the units serve."),
            ("/etc/localdns/hosts", "Critical names, with the addresses that were last good."),
            ("/etc/localdns/environment", "LOCALDNS_CRITICAL_FQDNS and other variables of the units."),
            ("/run/localdns.sock", "Unix socket of the status."),
            (
                "/usr/share/doc/localdns",
                "A page for each directive, metrics, limits, and what differs from CoreDNS.",
            ),
        ],
    ),
];
