//! The names that a Corefile refreshes, and the use of learned addresses.

use super::*;
use crate::corefile_source::{Origin, ValidatedConfig};
use plugins::hosts::plans;
use refresh::RefreshPlan;
use scene::Scene;
use std::fs;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use stub_resolver::LookupOutcome;

fn planned(corefile: &str, names: &str, interval: Option<u64>) -> Vec<(String, String, u64)> {
    let environment = Environment {
        names: names.split_whitespace().map(|text| Name::from_text(text).unwrap()).collect(),
        interval: interval.map(Duration::from_secs),
        ..Environment::default()
    };
    let draft = ValidatedConfig::read(&Origin::Text(corefile.into()), 53).unwrap();
    let names = |plan: &RefreshPlan| {
        plan.settings.names.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    };
    plans(&draft.spec, &environment)
        .iter()
        .map(|plan| {
            (plan.file.display().to_string(), names(plan), plan.settings.schedule.interval().as_secs())
        })
        .collect()
}

/// Each hosts file has one plan, with the names of all blocks that read it.
#[test]
fn one_plan_per_hosts_file() {
    let two = "a.:53 {\nhosts /run/h {\nrefresh x\n}\n}\nb.:53 {\nhosts /run/h {\nrefresh y x\nrefresh_interval 10s\n}\n}\n";
    let system = ". {\nhosts {\nfallthrough\n}\n}\na. {\nhosts /run/h\n}\nb. {\nhosts /run/i {\nrefresh_interval 1m\n}\n}\n";
    for (corefile, names, interval, expected) in [
        (". {\nhosts /run/h\n}\n", "", Some(30), &[][..]),
        (". {\nwhoami\n}\n", "x", None, &[]),
        (". {\nhosts\n}\n", "x", None, &[]),
        (". {\nhosts /run/h\n}\n", "x y", None, &[("/run/h", "x. y.", 900)]),
        (". {\nhosts /run/h\n}\n", "x", Some(30), &[("/run/h", "x.", 30)]),
        (". {\nhosts /run/h\n}\n", "x", Some(1), &[("/run/h", "x.", 5)]),
        (two, "", None, &[("/run/h", "x. y.", 900)]),
        (two, "z", Some(60), &[("/run/h", "x. y. z.", 60)]),
        (system, "x", None, &[("/run/h", "x.", 900)]),
    ] {
        let expected: Vec<_> = expected
            .iter()
            .map(|&(file, names, seconds)| (file.to_owned(), names.to_owned(), seconds))
            .collect();
        assert_eq!(planned(corefile, names, interval), expected, "{corefile} {names} {interval:?}");
    }
}

/// A plan names the directive or variable that requested it.
#[test]
fn plan_has_its_origin() {
    let (bare, refresh) = (". {\nhosts /run/h\n}\n", ". {\nhosts /run/h {\nrefresh y\n}\n}\n");
    for (corefile, names, because) in [
        (bare, "x", "LOCALDNS_CRITICAL_FQDNS"),
        (refresh, "", "`refresh`"),
        (refresh, "x", "`refresh` and LOCALDNS_CRITICAL_FQDNS"),
    ] {
        let names = names.split_whitespace().map(|text| Name::from_text(text).unwrap()).collect();
        let environment = Environment { names, ..Environment::default() };
        let draft = ValidatedConfig::read(&Origin::Text(corefile.into()), 53).unwrap();
        assert_eq!(plans(&draft.spec, &environment)[0].because, because);
    }
}

/// Properties in the Corefile override environment variables.
#[test]
fn corefile_overrides_environment() {
    let corefile = ". {\nhosts /run/h {\nrefresh_interval 10m\n}\n}\n";
    assert_eq!(planned(corefile, "x", Some(30)), [("/run/h".to_owned(), "x.".to_owned(), 600)]);
}

/// The first block of the root zone selects the upstreams; every listen address is the server's
/// own.
#[test]
fn first_root_block_selects_upstreams() {
    let asked = |corefile: &str| {
        let Upstreams { ours, forwarded } = upstreams(&Scene::new(corefile).configuration);
        let text = |at: &[SocketAddr]| at.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        (text(&ours), text(&forwarded))
    };
    let corefile = "a. {\nbind 127.0.0.1\nforward . 192.0.2.9\n}\n\
                    . {\nbind 127.0.0.1\nforward . 192.0.2.1 tls://192.0.2.2 192.0.2.3:54\n}\n\
                    . {\nbind 127.0.0.2\nforward . 192.0.2.8\n}\n";
    let (ours, forwarded) = asked(corefile);
    assert_eq!((&*ours, &*forwarded), ("127.0.0.1:53 127.0.0.2:53", "192.0.2.1:53 192.0.2.3:54"));
    assert_eq!(asked("a. {\nbind 127.0.0.1\nforward . 192.0.2.9\n}\n").1, "");
}

/// A server that only serves refreshed names.
struct Serving {
    scene: Scene,
    environment: Environment,
}

impl Server for Serving {
    fn serve(&self, kept: &RefreshedFile) {
        self.scene.shared.hosts.serve(kept);
    }

    fn upstreams(&self) -> Upstreams {
        Upstreams::default()
    }

    fn status(&self) -> serde_json::Value {
        refresh::report(self.kept())
    }

    fn kept(&self) -> &RefreshedFiles {
        &self.scene.shared.hosts.kept
    }

    fn environment(&self) -> &Environment {
        &self.environment
    }

    fn runtime(&self) -> &Handle {
        &self.scene.shared.handle
    }

    fn logger(&self) -> &Logger {
        &self.scene.shared.logger
    }
}

#[test]
fn what_we_wrote_ourselves_is_not_built_a_second_time() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("hosts");
    let corefile = format!(". {{\nbind 127.0.0.1\nhosts {} {{\nrefresh a\n}}\n}}\n", file.display());
    let draft = ValidatedConfig::read(&Origin::Text(corefile.as_str().into()), 53).unwrap();
    let server = Arc::new(Serving { scene: Scene::new(&corefile), environment: Environment::default() });
    let (hosts, mut now) = (&server.scene.shared.hosts, server.scene.now);
    hosts.kept.prepare(&plans(&draft.spec, &server.environment), &server.environment, now);
    let kept = hosts.kept.find(&file).unwrap();
    let table = hosts.all().pop().unwrap();
    let mut look = |text: Option<&str>| {
        if let Some(text) = text {
            fs::write(&file, text).unwrap();
        }
        let before = table.built();
        now += Duration::from_secs(5);
        table.look_for(now, files::READ_TIMEOUT, server.logger());
        table.built() > before
    };
    assert!(look(Some("192.0.2.9 canary\n")));
    assert!(!look(None));
    let learn = |began: Instant, address: &str| {
        let (questions, ..) = kept.begin(began);
        let outcome = LookupOutcome::Addresses { addresses: vec![address.parse().unwrap()], ttl: 60 };
        let of = questions.first().map(|question| (*question, outcome));
        kept.finish(began, of.into_iter().collect(), 0.0, &Arc::downgrade(&server));
    };
    learn(server.scene.now, "192.0.2.1");
    assert_eq!(
        server.scene.ask("127.0.0.1:53", "a", wire::RType::A),
        "NOERROR aa; a. 3600 IN A 192.0.2.1",
        "memory first"
    );
    assert!(fs::read_to_string(&file).unwrap().contains("192.0.2.1"), "then the file");
    assert!(!look(None), "it is served already");
    assert!(look(Some("192.0.2.8 canary\n")), "the text of another program is built");
    // A text that was read before addresses were learned is outdated.
    let since = kept.learned();
    let read = |since| kept.read(since, b"192.0.2.7 canary\n", Duration::ZERO, server.scene.now);
    assert!(read(since).is_some());
    kept.finish(server.scene.now, Vec::new(), 0.0, &Weak::<Serving>::new());
    assert_eq!(kept.learned(), since, "a server that has ended learns nothing");
    learn(server.scene.now, "192.0.2.2");
    assert!(read(since).is_none() && read(kept.learned()).is_some());
}

/// A hosts table has the names at once if its file is written during a read.
#[test]
fn file_written_during_read() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("hosts");
    let corefile = format!(". {{\nbind 127.0.0.1\nhosts {} {{\nrefresh a\n}}\n}}\n", file.display());
    let draft = ValidatedConfig::read(&Origin::Text(corefile.as_str().into()), 53).unwrap();
    // The file is so long that a check rarely ends before the next line of this test.
    fs::write(&file, "# as long as others are\n".repeat(40_000) + "192.0.2.9 canary\n").unwrap();
    let server = Arc::new(Serving { scene: Scene::new(&corefile), environment: Environment::default() });
    let (hosts, now) = (&server.scene.shared.hosts, server.scene.now);
    hosts.kept.prepare(&plans(&draft.spec, &server.environment), &server.environment, now);
    let kept = hosts.kept.find(&file).unwrap();
    let first = hosts.all().pop().unwrap();
    first.look_for(now, files::READ_TIMEOUT, server.logger());
    let canary = Name::from_text("canary").unwrap();
    assert_eq!(first.knows(&canary, wire::RType::A), Some(true));
    for ttl in 1..20 {
        // A new table, as after a reload that changes `hosts`.
        let mut spec = first.spec().clone();
        spec.ttl = ttl;
        let _held = hosts.table(&spec);
        let table = hosts.all().pop().unwrap();
        table.glance(now, server.logger());
        kept.finish(now, Vec::new(), 0.0, &Arc::downgrade(&server));
        table.look_for(now, files::READ_TIMEOUT, server.logger());
        assert_eq!(table.knows(&canary, wire::RType::A), Some(true), "table {ttl}");
    }
}
