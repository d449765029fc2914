//! Reads files with state of this program, which other users must not be able to change.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::{READ_TIMEOUT, ReadError, content, open, with_timeout};

/// Reads a file with state of this program, limited to [`READ_TIMEOUT`]. A file that other users
/// can change is refused. The permissions of its directory need no check: a file that another user
/// puts there is owned by that user, and refused.
///
/// # Errors
/// Those of [`read_with_timeout`](crate::read_with_timeout), and [`ReadError::Foreign`].
pub fn read_own_state(path: &Path, max_bytes: u64) -> Result<Vec<u8>, ReadError> {
    let owned = path.to_owned();
    let read = move || {
        let (file, metadata) = open(&owned)?;
        check_owner(&metadata, rustix::process::geteuid().as_raw())?;
        content(file, &metadata, max_bytes)
    };
    with_timeout(path, READ_TIMEOUT, read)?
}

/// # Errors
/// [`ReadError::Foreign`] for a file that users other than `user` and root can write. Write access
/// by an ACL shows in the group's bits (acl(5)).
fn check_owner(metadata: &Metadata, user: u32) -> Result<(), ReadError> {
    let (uid, mode) = (metadata.uid(), metadata.mode() & 0o7777);
    match (uid == 0 || uid == user) && mode & 0o022 == 0 {
        true => Ok(()),
        false => Err(ReadError::Foreign { uid, mode }),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn state_that_others_can_write_is_refused() {
        let home = tempfile::tempdir().unwrap();
        let (file, link) = (home.path().join("state"), home.path().join("link"));
        fs::write(&file, "four").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let uid = fs::metadata(&file).unwrap().uid();
        for (mode, is_refused) in
            [(0o644, false), (0o600, false), (0o755, false), (0o664, true), (0o646, true), (0o2660, true)]
        {
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            for path in [&file, &link] {
                let found = read_own_state(path, 4);
                let refused = matches!(found, Err(ReadError::Foreign { uid: owner, mode: of }) if (owner, of) == (uid, mode));
                assert_eq!((found.is_ok(), refused), (!is_refused, is_refused), "{mode:o}: {found:?}");
            }
        }
        // A file of another user is refused; one of root is accepted.
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        let metadata = fs::metadata(&file).unwrap();
        assert_eq!(check_owner(&metadata, uid + 1).is_ok(), uid == 0);
        let message = ReadError::Foreign { uid: 7, mode: 0o60 }.to_string();
        assert!(message.contains("found owner 7 and mode 0060"), "{message}");
    }
}
