//! A worker restarts after a panic.

use super::*;

#[test]
fn a_worker_that_panics_starts_again_with_its_sockets_and_gives_back_what_it_held() {
    let scene = Scene::start(2, "max_concurrent 4");
    let client = scene.client();
    for n in 1..=3 {
        client.send(&packet(&format!("silent-{n}.example"))).unwrap();
        scene.wait("a query at the upstream", || scene.asked(&format!("silent-{n}")));
    }
    assert_eq!(scene.in_flight(), 3);
    // The kernel chooses the worker by the port: each client may reach another one.
    let clients: Vec<UdpSocket> = (0..24).map(|_| scene.client()).collect();
    for (n, client) in clients.iter().enumerate() {
        client.send(&packet(&format!("panic-miss.n{n}.example"))).unwrap();
        let restarts = n as u64 + 1;
        scene.wait("the restart", || scene.counted() == (restarts, restarts));
    }
    assert_eq!(scene.in_flight(), 0);
    for client in &clients {
        client.send(&packet("good.example")).unwrap();
        assert_eq!(rcode(client), Some(NOERROR), "every worker serves");
    }
    for n in 4..=7 {
        client.send(&packet(&format!("silent-{n}.example"))).unwrap();
        scene.wait("a query at the upstream", || scene.asked(&format!("silent-{n}")));
    }
    assert_eq!((scene.in_flight(), scene.ask("fifth.example")), (4, Some(REFUSED)));
}

#[test]
fn a_worker_that_panics_in_every_turn_rests_longer_each_time_and_serves_once_it_can() {
    let scene = Scene::start(1, "");
    let began = clock::now();
    SICK.lock().unwrap().push(scene.running.shared.probe);
    scene.wait("the sixth restart", || scene.counted().1 >= 6);
    // 10, 20, 40, 80, 160 and 320 ms.
    assert!(began.elapsed() >= Duration::from_millis(630), "{:?}", began.elapsed());
    let client = scene.client();
    client.send(&packet("waits.example")).unwrap();
    SICK.lock().unwrap().retain(|sick| *sick != scene.running.shared.probe);
    assert_eq!(rcode(&client), Some(NOERROR), "what waited in the socket is answered");
    let (panics, restarts) = scene.counted();
    assert_eq!((scene.ask("good.example"), scene.counted()), (Some(NOERROR), (panics, restarts)));
}

#[test]
fn a_worker_that_panics_while_it_ends_still_ends() {
    let mut scene = Scene::start(1, "");
    let client = scene.client();
    client.send(&packet("silent.example")).unwrap();
    scene.wait("a query in flight", || scene.in_flight() == 1);
    let server = scene.server.take().unwrap();
    let stopping = thread::spawn(move || server.stop());
    // New connections are refused just before the workers receive the stop task.
    scene.wait("the end of the listener", || TcpStream::connect(scene.at).is_err());
    scene.wait("the worker's restart, or its end", || {
        drop(client.send(&packet("panic-miss.example")));
        scene.counted().1 > 0 || stopping.is_finished()
    });
    scene.wait("the end", || stopping.is_finished());
    stopping.join().unwrap();
}
