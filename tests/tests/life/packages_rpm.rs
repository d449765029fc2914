//! The .rpm on a node: installed, upgraded and erased under the test's own systemd.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use tests::{Systemd, isolated, output, tempdir, tool};

use super::packages::{
    COREFILE, PATIENCE, PLACE, boot, inside, newer_program_replaces_the_running, nothing_is_left, packages,
    path_of, word,
};
use super::text;

/// The .rpm is installed, upgraded and erased.
#[test]
fn rpm_life_cycle() {
    isolated(|| {
        let test = "rpm_life_cycle";
        let Some(packages) = packages(test) else { return };
        if !tool(test, "rpm") || !tool(test, "cargo-generate-rpm") {
            return;
        }
        let Some(systemd) = boot(test) else { return };
        let file = PathBuf::from(PLACE).join("localdns.rpm");
        fs::copy(path_of(&packages, ".x86_64.rpm"), &file).expect("there is room");
        rpm(&systemd, &["--initdb"]);
        // The test's empty package database does not know the shell that the scripts require.
        rpm(&systemd, &["--nodeps", "-i", &word(&file)]);
        // Verifies content, mode and owner of every file.
        assert_eq!(rpm(&systemd, &["--nodeps", "-V", "localdns"]), "");
        let modes = "stat -c '%a %n' /usr/bin/localdns /usr/lib/systemd/system/localdns-node.service /etc/localdns/Corefile";
        assert_eq!(
            inside(&systemd, "sh", &["-ec", modes]),
            "755 /usr/bin/localdns\n644 /usr/lib/systemd/system/localdns-node.service\n644 /etc/localdns/Corefile\n"
        );
        assert_eq!(rpm(&systemd, &["-q", "--qf", "%{VERSION}\n", "localdns"]), "0.1.0\n");
        newer_program_replaces_the_running(&systemd, |version| {
            let newer = newer(&packages, version);
            rpm(&systemd, &["--nodeps", "-U", &word(&newer)]);
            assert_eq!(rpm(&systemd, &["-q", "--qf", "%{VERSION}\n", "localdns"]), format!("{version}\n"));
            let beside = fs::read_to_string("/etc/localdns/Corefile.rpmnew").expect("it is put beside");
            assert!(beside.ends_with(&format!("# of {version}\n")), "{beside}");
        });
        let files = rpm(&systemd, &["-ql", "localdns"]);
        rpm(&systemd, &["-e", "localdns"]);
        nothing_is_left(&systemd);
        for file in files.lines() {
            let gone = inside(&systemd, "sh", &["-ec", &format!("test ! -f {file} || echo {file}")]);
            assert_eq!(gone, "", "it is left");
        }
        let saved = fs::read_to_string("/etc/localdns/Corefile.rpmsave").expect("the operator's is kept");
        assert_eq!(saved, COREFILE);
    });
}

fn rpm(systemd: &Systemd, args: &[&str]) -> String {
    inside(systemd, "rpm", &[&["--dbpath", "/run/rpm"], args].concat())
}

/// Builds a later version with another Corefile from the manifest, beside the packages.
fn newer(packages: &Path, version: &str) -> PathBuf {
    let (place, out) = (tempdir(), PathBuf::from(PLACE).join(format!("{version}.rpm")));
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package lies in the workspace");
    let mut make = Command::new("sh");
    make.args(["-ec", NEWER]).current_dir(place.path());
    make.env("ROOT", root).env("STAGE", fs::canonicalize(packages).expect("it is there"));
    make.env("DEB", path_of(packages, "_amd64.deb")).env("VERSION", version).env("OUT", &out);
    let made = output(make, PATIENCE);
    assert!(made.status.success(), "{}{}", text(&made.stdout), text(&made.stderr));
    fs::set_permissions(&out, fs::Permissions::from_mode(0o644)).expect("it is ours");
    out
}

const NEWER: &str = r#"
mkdir -p target/package deploy server
cp -r "$STAGE"/units "$STAGE"/man "$STAGE"/completions "$STAGE"/doc target/package
dpkg-deb --fsys-tarfile "$DEB" | tar -xO ./usr/bin/localdns >target/package/localdns
cp -r "$ROOT/deploy/packages" deploy
cp -r "$ROOT/server/Cargo.toml" "$ROOT/server/src" server
cp "$ROOT/Corefile.example" .
printf '# of %s\n' "$VERSION" >>Corefile.example
sed "s/^version = .*/version = \"$VERSION\"/" "$ROOT/Cargo.toml" >Cargo.toml
cargo generate-rpm --target x86_64-unknown-linux-musl -p server --output "$OUT"
"#;
