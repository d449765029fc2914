//! The console that the kernel writes on.

use std::fs;

/// Keeps the kernel's errors off its console as long as it lives; its log has them, and emergencies are written. Whoever has the
/// kernel kill a process writes the line about that, letter by letter, and no other thread has its core meanwhile: 3 ms on the
/// serial line of a virtual machine, 16 on a real one at 115,200 bit/s.
#[derive(Debug)]
pub struct QuietConsole {
    level: String,
}

impl QuietConsole {
    /// # Errors
    /// Why it stays as it is.
    pub fn new() -> Result<Self, String> {
        let error = |error: std::io::Error| format!("{PRINTK}: {error}");
        let levels = fs::read_to_string(PRINTK).map_err(error)?;
        // Of four levels the first is that of consoles.
        let level = levels.split_whitespace().next().unwrap_or_default().to_owned();
        fs::write(PRINTK, "1").map_err(error)?;
        Ok(Self { level })
    }
}

impl Drop for QuietConsole {
    fn drop(&mut self) {
        drop(fs::write(PRINTK, &self.level));
    }
}

const PRINTK: &str = "/proc/sys/kernel/printk";
