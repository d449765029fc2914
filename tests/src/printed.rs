//! Collects all lines that the program prints during tests in one file, for reviewing its messages.
//!
//! `LOCALDNS_MESSAGES=FILE`, an absolute path, turns it on. Each line is written once, with `N` for
//! its numbers, below the command that printed it.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::process::Command;

/// Collects the output of a command, if it runs the program.
pub(crate) fn collect_output(command: &Command, streams: [&[u8]; 2]) {
    let mut words = std::iter::once(command.get_program()).chain(command.get_args());
    if words.any(|word| Path::new(word).file_name().is_some_and(|name| name == "localdns")) {
        let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
        let lines: Vec<_> = streams.into_iter().map(String::from_utf8_lossy).collect();
        let lines: Vec<_> = lines.iter().flat_map(|text| text.lines()).map(str::to_owned).collect();
        collect(&format!("localdns {}", words.join(" ")), &lines);
    }
}

/// Appends the lines that the file does not have yet.
pub(crate) fn collect(command: &str, lines: &[String]) {
    let Some(path) = std::env::var_os("LOCALDNS_MESSAGES") else { return };
    let file = File::options().create(true).read(true).append(true).open(path);
    let mut file = file.expect("LOCALDNS_MESSAGES names a file that can be written");
    file.lock().expect("the file can be locked");
    let mut known = String::new();
    file.read_to_string(&mut known).expect("the file is text");
    let mut added = String::new();
    for line in lines.iter().map(|line| without_numbers(line)) {
        if known.lines().chain(added.lines()).all(|other| other != line) {
            added = added + &line + "\n";
        }
    }
    if !added.is_empty() {
        file.write_all(format!("$ {command}\n{added}\n").as_bytes()).expect("the file can be written");
    }
}

/// The line with `N` for every sequence of digits.
fn without_numbers(line: &str) -> String {
    let mut text = String::new();
    for character in line.chars() {
        match character {
            digit if digit.is_ascii_digit() && text.ends_with('N') => {}
            digit if digit.is_ascii_digit() => text.push('N'),
            other => text.push(other),
        }
    }
    text
}
