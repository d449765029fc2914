//! What `deploy/build-packages` makes, as a node gets it: installed, upgraded, removed and purged under a systemd of its own; the
//! image's one layer as it runs. `LOCALDNS_PACKAGES` names the directory that holds them.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tests::{Ask, Systemd, assert_contains, eventually, isolated, output, run, skip, tempdir, tool};

use super::{Killed, text};

/// What both packages hold, among documents.
const HELD: &[&str] = &[
    "/etc/localdns/Corefile",
    "/usr/bin/localdns",
    "/usr/lib/systemd/system/localdns-node-resolver.service",
    "/usr/lib/systemd/system/localdns-node-annotate.service",
    "/usr/lib/systemd/system/localdns-node.service",
    "/usr/lib/systemd/system/localdns-refresh.service",
    "/usr/lib/systemd/system/localdns-refresh.timer",
    "/usr/lib/systemd/system/localdns.service",
    "/usr/share/bash-completion/completions/localdns",
    "/usr/share/doc/localdns/README.md",
    "/usr/share/doc/localdns/LICENSE",
    "/usr/share/doc/localdns/docs/node.md",
    "/usr/share/doc/localdns/plugins/src/forward/README.md",
    "/usr/share/doc/localdns/deploy/monitoring/alerts.yaml",
    "/usr/share/man/man8/localdns.8.gz",
    "/usr/share/man/man8/localdns-node-run.8.gz",
];

#[test]
fn both_packages_hold_the_program_its_units_its_pages_and_a_corefile_that_is_kept() {
    let test = "both_packages_hold_the_program_its_units_its_pages_and_a_corefile_that_is_kept";
    let Some(packages) = packages(test) else { return };
    if !tool(test, "rpm") {
        return;
    }
    let deb = path_of(&packages, ".deb");
    let rpm = path_of(&packages, ".rpm");
    let files = run("sh", &["-ec", &format!("dpkg-deb --fsys-tarfile {} | tar --list", deb.display())]);
    let rpm = rpm.to_str().expect("its path is text");
    let both = [("deb", files.replace("./", "/")), ("rpm", run("rpm", &["-qpl", rpm]))];
    for (kind, files) in both {
        for held in HELD {
            assert!(files.lines().any(|file| file == *held), "{kind}: {held} is not in\n{files}");
        }
    }
    let kept = run("dpkg-deb", &["-I", deb.to_str().expect("its path is text"), "conffiles"]);
    assert_eq!(kept, "/etc/localdns/Corefile\n");
    assert_eq!(run("rpm", &["-qpc", rpm]), "/etc/localdns/Corefile\n");
    assert_contains!(run("rpm", &["-qp", "--qf", "%{LICENSE} %{ARCH}", rpm]), "Apache-2.0 x86_64");
    assert_eq!(run("dpkg-deb", &["-f", deb.to_str().expect("its path is text"), "Architecture"]), "amd64\n");
}

#[test]
fn the_deb_is_installed_upgraded_removed_and_purged() {
    isolated(|| {
        let test = "the_deb_is_installed_upgraded_removed_and_purged";
        let Some(packages) = packages(test) else { return };
        let Some(systemd) = Systemd::boot(test) else { return };
        // The machine's own programs and list of packages stay as they are.
        let mut mounts = systemd.inside("sh");
        mounts.args(["-ec", OVERLAYS]);
        let mounted = output(mounts, PATIENCE);
        if !mounted.status.success() {
            return skip(test, &format!("file systems of its own: {}", text(&mounted.stderr).trim()));
        }
        let dpkg = |args: &[&str]| {
            let mut dpkg = systemd.inside("dpkg");
            dpkg.args(args);
            let done = output(dpkg, PATIENCE);
            assert!(done.status.success(), "{args:?}: {}{}", text(&done.stdout), text(&done.stderr));
        };
        // This systemd has a /tmp of its own, and may not see where they were built.
        let deb = PathBuf::from("/etc/packages/localdns.deb");
        fs::create_dir("/etc/packages").expect("the test has an /etc of its own");
        fs::copy(path_of(&packages, ".deb"), &deb).expect("there is room");
        fs::remove_dir_all("/etc/localdns").expect("the test has an /etc of its own");
        dpkg(&["-i", deb.to_str().expect("its path is text")]);
        assert_eq!(systemd.show("localdns", "ActiveState,LoadState"), ["inactive", "loaded"]);
        assert!(!Path::new("/etc/systemd/system/multi-user.target.wants/localdns.service").exists());

        let at: SocketAddr = "169.254.10.10:53".parse().expect("it is an address");
        let corefile = ".:53 {\nbind 169.254.10.10\nhosts {\n192.0.2.1 a.example\n}\n}\n";
        fs::write("/etc/localdns/Corefile", corefile).expect("it is there");
        systemd.ctl(&["start", "localdns"]);
        assert_eq!(Ask::new("a.example", "A").of(at).short(), ["192.0.2.1"]);
        let first = systemd.main_pid("localdns");

        let newer = newer(&deb);
        dpkg(&["--force-confdef", "-i", newer.1.to_str().expect("its path is text")]);
        assert_eq!(fs::read_to_string("/etc/localdns/Corefile").expect("it is there"), corefile);
        assert_ne!(systemd.main_pid("localdns"), first, "the new program serves");
        assert_eq!(Ask::new("a.example", "A").of(at).short(), ["192.0.2.1"]);

        dpkg(&["-r", "localdns"]);
        assert_eq!(systemd.show("localdns", "ActiveState"), ["inactive"]);
        let links = run("ip", &["address", "show"]);
        assert!(!links.contains("169.254.10.10"), "nobody would answer there:\n{links}");
        assert_eq!(fs::read_to_string("/etc/localdns/Corefile").expect("it is there"), corefile);
        dpkg(&["-P", "localdns"]);
        assert!(!Path::new("/etc/localdns").exists());
    });
}

#[test]
fn the_image_has_one_layer_with_one_program_that_serves() {
    isolated(|| {
        let test = "the_image_has_one_layer_with_one_program_that_serves";
        let Some(packages) = packages(test) else { return };
        let place = tempdir();
        let (image, root) = (place.path().join("image"), place.path().join("root"));
        for path in [&image, &root] {
            fs::create_dir(path).expect("the directory is ours");
        }
        let text = |path: &Path| path.to_str().expect("its path is text").to_owned();
        run("tar", &["-xf", &text(&path_of(&packages, ".tar")), "-C", &text(&image)]);
        let blob = |pointer: &Value| {
            let digest = pointer["digest"].as_str().expect("it has a digest").trim_start_matches("sha256:");
            let path = image.join("blobs/sha256").join(digest);
            let sum = run("sha256sum", &[&text(&path)]);
            assert!(sum.starts_with(digest), "{sum}");
            assert_eq!(fs::metadata(&path).expect("it is there").len(), pointer["size"], "{digest}");
            path
        };
        let read = |path: &Path| -> Value {
            serde_json::from_str(&fs::read_to_string(path).expect("it is there")).expect("it is JSON")
        };
        let manifest = read(&blob(&read(&image.join("index.json"))["manifests"][0]));
        let config = read(&blob(&manifest["config"]));
        assert_eq!(config["config"]["Entrypoint"], serde_json::json!(["/localdns"]));
        assert_eq!(manifest["layers"].as_array().map(Vec::len), Some(1));
        run("tar", &["-xzf", &text(&blob(&manifest["layers"][0])), "-C", &text(&root)]);
        // For the pidfile of NodeLocal DNSCache's manifest.
        let mode = fs::metadata(root.join("tmp")).expect("it has a /tmp").permissions().mode();
        assert_eq!(mode & 0o7777, 0o1777);

        fs::create_dir_all(root.join("etc/coredns")).expect("the directory is ours");
        let corefile = ".:53 {\nbind 127.0.0.1\nhosts {\n192.0.2.1 a.example\n}\n}\n";
        fs::write(root.join("etc/coredns/Corefile"), corefile).expect("the directory is ours");
        let mut server = Command::new("chroot");
        server.arg(&root).args(["/localdns", "-conf", "/etc/coredns/Corefile"]).stdout(Stdio::null());
        let _server = Killed(server.spawn().expect("chroot is there"));
        let at: SocketAddr = "127.0.0.1:53".parse().expect("it is an address");
        eventually("an answer", PATIENCE, || {
            let reply = Ask::new("a.example", "A").timeout(Duration::from_millis(200)).try_of(at).ok()?;
            (reply.short() == ["192.0.2.1"]).then_some(())
        });
    });
}

/// `LOCALDNS_ARM64` names the binary; it runs under qemu where the processor is another one.
#[test]
fn the_arm64_binary_answers_over_udp_and_tcp() {
    isolated(|| {
        let test = "the_arm64_binary_answers_over_udp_and_tcp";
        let Some(binary) = std::env::var_os("LOCALDNS_ARM64") else {
            return skip(test, "LOCALDNS_ARM64 does not say where `deploy/build-static aarch64` put it");
        };
        if !tool(test, "qemu-aarch64") {
            return;
        }
        let place = tempdir();
        let corefile = place.path().join("Corefile");
        let text = ".:53 {\nbind 127.0.0.1\nhosts {\n192.0.2.1 a.example\n}\n}\n";
        fs::write(&corefile, text).expect("the directory is ours");
        let mut server = Command::new("qemu-aarch64");
        server.arg(binary).arg("-conf").arg(&corefile).stdout(Stdio::null());
        let _server = Killed(server.spawn().expect("qemu is there"));
        let at: SocketAddr = "127.0.0.1:53".parse().expect("it is an address");
        eventually("an answer", PATIENCE, || {
            let reply = Ask::new("a.example", "A").timeout(Duration::from_millis(500)).try_of(at).ok()?;
            (reply.short() == ["192.0.2.1"]).then_some(())
        });
        assert_eq!(Ask::new("a.example", "A").tcp().of(at).short(), ["192.0.2.1"]);
    });
}

/// Where the packages are, if anywhere.
fn packages(test: &str) -> Option<PathBuf> {
    let packages = std::env::var_os("LOCALDNS_PACKAGES").map(PathBuf::from);
    if packages.is_none() {
        skip(test, "LOCALDNS_PACKAGES does not say where deploy/build-packages put them");
    }
    packages
}

/// The one file there that ends so.
fn path_of(packages: &Path, end: &str) -> PathBuf {
    let packages =
        fs::canonicalize(packages).unwrap_or_else(|error| panic!("{}: {error}", packages.display()));
    let entries = fs::read_dir(&packages).unwrap_or_else(|error| panic!("{}: {error}", packages.display()));
    let found: Vec<PathBuf> = entries
        .map(|entry| entry.expect("a directory can be read").path())
        .filter(|path| path.to_string_lossy().ends_with(end))
        .collect();
    assert_eq!(found.len(), 1, "{end}: {found:?}");
    found.into_iter().next().expect("there is one")
}

/// The same package as the next version would be; kept as long as the directory.
fn newer(deb: &Path) -> (tempfile::TempDir, PathBuf) {
    let place = tempfile::tempdir_in(deb.parent().expect("it lies in a directory")).expect("it is ours");
    let (tree, newer) = (place.path().join("tree"), place.path().join("newer.deb"));
    let mut make = Command::new("sh");
    make.args(["-ec", NEWER]).env("DEB", deb).env("TREE", &tree).env("NEWER", &newer);
    let made = output(make, PATIENCE);
    assert!(made.status.success(), "{}", text(&made.stderr));
    (place, newer)
}

const NEWER: &str = r#"
dpkg-deb -R "$DEB" "$TREE"
sed -i 's/^Version: .*/Version: 9.9.9-1/' "$TREE/DEBIAN/control"
echo '# of the next version' >>"$TREE/etc/localdns/Corefile"
dpkg-deb -b "$TREE" "$NEWER"
"#;
/// What a package writes goes to memory, its units where this systemd looks for them.
const OVERLAYS: &str = r#"
for place in /usr/bin /usr/share /var/lib/dpkg; do
    upper=/run/overlay$place
    mkdir -p $upper/up $upper/work
    mount -t overlay overlay -o lowerdir=$place,upperdir=$upper/up,workdir=$upper/work $place
done
rm -f /etc/systemd/system/localdns*
mount --bind /etc/systemd/system /usr/lib/systemd/system
umount /usr/local/bin/localdns
rm /usr/local/bin/localdns
systemctl daemon-reload
"#;
const PATIENCE: Duration = Duration::from_secs(60);
