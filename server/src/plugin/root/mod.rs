//! `root`: where relative paths of a server block start.

use std::path::PathBuf;

use corefile::Directive;

use crate::setup::args::{Args, Result, no_block, once};

/// `root PATH`: where relative paths of this block start.
pub(crate) fn parse(directives: &[&Directive]) -> Result<PathBuf> {
    let directive = once("root", directives)?;
    no_block("root", directive)?;
    let mut args = Args::new("root", directive, "a directory");
    let path = PathBuf::from(&args.required()?.text);
    args.end()?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setup::tests::{good, refused};

    #[test]
    fn relative_paths_start_at_root() {
        for (line, file) in
            [("hosts h", "h"), ("hosts h\nroot /srv", "/srv/h"), ("root /srv\nhosts /etc/h", "/etc/h")]
        {
            assert_eq!(good(line).hosts.unwrap().file, PathBuf::from(file), "{line}");
        }
    }

    #[test]
    fn a_directory_is_named() {
        refused(&[
            ("root", "2:1: plugin/root: `root` wants a directory"),
            ("root /a /b", "2:9: plugin/root: unexpected argument \"/b\"; `root` wants a directory"),
        ]);
    }
}
