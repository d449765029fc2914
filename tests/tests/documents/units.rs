//! systemd's units.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use tests::{binary, output, tempdir, tool};

use super::{PATIENCE, localdns, read, root, stderr};

#[test]
fn unit_matches_the_readme() {
    is_as_it_should_be("localdns", UNIT);
}

/// The unit of `node run` differs from the server's by its command only.
#[test]
fn node_unit_differs_by_command() {
    let command = "/usr/local/bin/localdns node run";
    let written = "/run -/etc/localdns -/opt/azure/containers/localdns";
    let changed = |row: &(&'static str, &'static str, &'static str)| match row.1 {
        "ExecStart" => ("Service", "ExecStart", command),
        "ReadWritePaths" => ("Service", "ReadWritePaths", written),
        _ => *row,
    };
    // Variables, since the environment file can override them, but not arguments.
    let variables = "LOCALDNS_NODE_CONF=/etc/localdns/Corefile LOCALDNS_NODE_PIDFILE=/run/localdns.pid";
    let mut rows: Vec<_> = UNIT.iter().map(changed).collect();
    rows.push(("Service", "Environment", variables));
    // One descriptor per worker and address, the listeners, the saved cache, and reserve for
    // descriptors left by a kill during a stop.
    rows.push(("Service", "FileDescriptorStoreMax", "1024"));
    rows.push(("Service", "ExecStopPost", "/usr/local/bin/localdns node stopped"));
    // A stop takes 5 to 7 s, and the time for queries in flight.
    rows.push(("Service", "TimeoutStopSec", "30"));
    is_as_it_should_be("localdns-node", &rows);
}

/// The unit of `node up` has only the privileges to install the fallback.
#[test]
fn node_up_unit_privileges() {
    let rows = [
        ("Service", "ExecStart", "/usr/local/bin/localdns node up"),
        ("Service", "Environment", "LOCALDNS_NODE_CONF=/etc/localdns/Corefile"),
        ("Service", "Type", "oneshot"),
        ("Service", "RemainAfterExit", "yes"),
        ("Unit", "StartLimitIntervalSec", "0"),
        ("Service", "Restart", "on-failure"),
        ("Service", "RestartSec", "5"),
        ("Service", "EnvironmentFile", "-/etc/localdns/environment"),
        ("Service", "CapabilityBoundingSet", "CAP_NET_ADMIN"),
        ("Service", "ProtectSystem", "strict"),
        ("Install", "WantedBy", "multi-user.target"),
    ];
    is_as_it_should_be("localdns-node-up", &rows);
}

/// The unit that annotates the node may only send queries.
#[test]
fn annotate_unit_privileges() {
    let rows = [
        ("Service", "ExecStart", "/usr/local/bin/localdns node annotate"),
        ("Service", "Type", "oneshot"),
        ("Service", "CapabilityBoundingSet", ""),
        ("Service", "ProtectSystem", "strict"),
        ("Install", "WantedBy", "multi-user.target"),
    ];
    is_as_it_should_be("localdns-node-annotate", &rows);
}

#[test]
fn units_have_least_privileges() {
    let mut units = 0;
    for entry in fs::read_dir(root().join("deploy")).expect("it is there").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.ends_with(".service") {
            continue;
        }
        let unit = read(&format!("deploy/{name}"));
        let settings = settings(&unit);
        for (key, values) in CONFINED {
            assert_eq!(settings.get(&("Service", *key)).map(Vec::as_slice), Some(*values), "{name}: {key}");
        }
        units += 1;
    }
    assert_eq!(units, 6);
}

fn is_as_it_should_be(name: &str, rows: &[(&str, &str, &str)]) {
    let unit = read(&format!("deploy/{name}.service"));
    let settings = settings(&unit);
    for (section, key, value) in rows {
        assert_eq!(settings.get(&(*section, *key)).map(Vec::as_slice), Some(&[*value][..]), "{key}");
    }
    if !tool(name, "systemd-analyze") {
        return;
    }
    let directory = tempdir();
    let path = directory.path().join(format!("{name}.service"));
    let unit = unit.replace("/usr/local/bin/localdns", &binary().to_string_lossy());
    fs::write(&path, unit).expect("the directory is writable");
    let mut command = Command::new("systemd-analyze");
    command.args(["verify", "--man=no"]).arg(&path);
    let verified = output(command, PATIENCE);
    let printed = stderr(&verified);
    assert!(verified.status.success() && !printed.contains(&format!("{name}.service:")), "{printed}");
}

#[test]
fn timer_runs_every_quarter_hour() {
    let (unit, timer) = (read("deploy/localdns-refresh.service"), read("deploy/localdns-refresh.timer"));
    let (unit, timer) = (settings(&unit), settings(&timer));
    let command = unit[&("Service", "ExecStart")][0];
    let args = command.strip_prefix("/usr/local/bin/localdns ").unwrap_or_else(|| panic!("{command}"));
    let directory = tempdir();
    let corefile = directory.path().join("Corefile");
    fs::write(&corefile, ". {\nwhoami\n}\n").unwrap();
    let args = args.replace("/etc/localdns/Corefile", &corefile.to_string_lossy());
    let done = output(localdns(&args.split(' ').collect::<Vec<_>>()), PATIENCE);
    assert!(done.status.success() && stderr(&done) == "there is no name to refresh\n", "{done:?}");
    assert_eq!(unit[&("Service", "Type")], ["oneshot"]);
    assert_eq!(unit[&("Service", "ReadWritePaths")], ["/etc/localdns"]);
    for (key, value) in [("OnBootSec", "0"), ("OnUnitActiveSec", "15min"), ("RandomizedDelaySec", "60")] {
        assert_eq!(timer[&("Timer", key)], [value]);
    }
}

/// The settings of a systemd unit by section and key.
fn settings(unit: &str) -> BTreeMap<(&str, &str), Vec<&str>> {
    let mut settings: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    let mut section = "";
    for line in unit.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            section = name;
            continue;
        }
        let (key, value) = line.split_once('=').unwrap_or_else(|| panic!("not a setting: {line}"));
        // An empty value is valid, as for the capabilities.
        assert!(!section.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric()), "{line}");
        settings.entry((section, key)).or_default().push(value);
    }
    settings
}

/// The settings of every unit.
const CONFINED: &[(&str, &[&str])] = &[
    ("NoNewPrivileges", &["yes"]),
    ("ProtectSystem", &["strict"]),
    ("ProtectHome", &["yes"]),
    ("PrivateTmp", &["yes"]),
    ("PrivateDevices", &["yes"]),
    ("ProtectClock", &["yes"]),
    ("ProtectControlGroups", &["yes"]),
    ("ProtectHostname", &["yes"]),
    ("ProtectKernelLogs", &["yes"]),
    ("ProtectKernelModules", &["yes"]),
    ("ProtectKernelTunables", &["yes"]),
    ("LockPersonality", &["yes"]),
    ("MemoryDenyWriteExecute", &["yes"]),
    ("RestrictNamespaces", &["yes"]),
    ("RestrictRealtime", &["yes"]),
    ("RestrictSUIDSGID", &["yes"]),
    ("SystemCallArchitectures", &["native"]),
    ("SystemCallErrorNumber", &["EPERM"]),
    ("UMask", &["0022"]),
];

/// The unit's required settings, each exactly once.
const UNIT: &[(&str, &str, &str)] = &[
    ("Unit", "StartLimitIntervalSec", "0"),
    ("Service", "Type", "notify"),
    ("Service", "NotifyAccess", "main"),
    (
        "Service",
        "ExecStart",
        "/usr/local/bin/localdns -conf /etc/localdns/Corefile -pidfile /run/localdns.pid",
    ),
    ("Service", "ExecReload", "/bin/kill -HUP $MAINPID"),
    ("Service", "Restart", "always"),
    ("Service", "RestartSec", "100ms"),
    ("Service", "WatchdogSec", "60"),
    ("Service", "OOMScoreAdjust", "-999"),
    ("Service", "LimitNOFILE", "65536"),
    ("Service", "LimitMEMLOCK", "32M"),
    ("Service", "CapabilityBoundingSet", "CAP_NET_BIND_SERVICE CAP_NET_ADMIN"),
    ("Service", "AmbientCapabilities", "CAP_NET_BIND_SERVICE CAP_NET_ADMIN"),
    ("Service", "NoNewPrivileges", "yes"),
    ("Service", "ProtectSystem", "strict"),
    ("Service", "EnvironmentFile", "-/etc/localdns/environment"),
    ("Service", "ReadWritePaths", "/run -/etc/localdns"),
];
