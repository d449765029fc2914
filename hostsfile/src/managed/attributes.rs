//! Copies owner, mode and extended attributes (including ACL and SELinux label) from one file to
//! another.

use std::fs::File;
use std::io;
use std::os::unix::fs::{MetadataExt as _, fchown};

use rustix::buffer::spare_capacity;
use rustix::fs::{XattrFlags, fgetxattr, flistxattr, fremovexattr, fsetxattr};
use rustix::io::Errno;

/// Copies the attributes of `from` to `to`.
///
/// # Errors
/// The system refuses an attribute; `to` may then have some of the attributes.
pub(super) fn copy(from: &File, to: &File) -> io::Result<()> {
    let (want, have) = (from.metadata()?, to.metadata()?);
    if (want.uid(), want.gid()) != (have.uid(), have.gid()) {
        fchown(to, Some(want.uid()), Some(want.gid()))?;
    }
    // The new file may have inherited the default ACL of the directory.
    let (wanted, had) = (names(from)?, names(to)?);
    for name in had.iter().filter(|name| !wanted.contains(name)) {
        fremovexattr(to, name.as_slice())?;
    }
    for name in &wanted {
        let value = value(from, name)?;
        // An attribute that is equal already needs no privilege.
        if !had.contains(name) || self::value(to, name)? != value {
            fsetxattr(to, name.as_slice(), &value, XattrFlags::empty())?;
        }
    }
    // The mode is set last, since fchown clears bits of it. With an ACL, the group bits of the mode
    // are the ACL's mask, in both files.
    to.set_permissions(want.permissions())
}

fn names(file: &File) -> io::Result<Vec<Vec<u8>>> {
    let mut list = Vec::with_capacity(MAX_BYTES);
    match flistxattr(file, spare_capacity(&mut list)) {
        Ok(_) => {}
        Err(Errno::NOTSUP) => return Ok(Vec::new()),
        Err(error) => return Err(error.into()),
    }
    Ok(list.split(|&byte| byte == 0).filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect())
}

fn value(file: &File, name: &[u8]) -> io::Result<Vec<u8>> {
    let mut value = Vec::with_capacity(MAX_BYTES);
    fgetxattr(file, name, spare_capacity(&mut value))?;
    Ok(value)
}

/// Maximum size of a list and of a value (xattr(7)).
const MAX_BYTES: usize = 64 << 10;
