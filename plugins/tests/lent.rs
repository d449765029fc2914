//! Values that plugins of a block pass to the code that starts them.

use plugins::r#loop::Watch;
use scene::Scene;
use wire::{Name, RType};

#[test]
fn loop_probe_matches_block_queries() {
    let scene = Scene::new(". {\nbind 127.0.0.1\nloop\nwhoami\n}\n");
    let lent = scene.configuration.blocks[0].lent.get::<Watch>();
    let watch = lent.get().expect("`loop` lends it");
    watch.start(vec![(Name::from_text("x.example").unwrap(), 7)]);
    for (name, rtype) in [("x.example", RType::A), ("y.example", RType::HINFO)] {
        scene.ask("127.0.0.1:53", name, rtype);
    }
    assert!(!watch.has_seen(7));
    scene.ask("127.0.0.1:53", "x.example", RType::HINFO);
    assert_eq!(watch.stop(), [7]);
}
