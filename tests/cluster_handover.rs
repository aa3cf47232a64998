//! Leadership that is handed over: the old leader answers nothing from memory afterwards, and the
//! sale goes on.

mod cluster;

use std::time::Duration;

use cluster::{Fleet, Plan, Witness, rounds};

/// A node that is told to end hands over while a unit goes to and fro and it is asked about it.
#[tokio::test]
async fn transferred_leadership_answers_nothing_from_memory() {
    let mut fleet = Fleet::start(Plan::new(3, 1)).await;
    fleet.put_units("unit", 1).await;
    for round in 0..rounds(3) {
        let old = fleet.leader_of("unit").await;
        let movers: Vec<_> = fleet.others(old).into_iter().map(|id| fleet.http(id)).collect();
        let witness = Witness::start("unit", movers, &[fleet.http(old); 6]);
        witness.wait_moves(12).await;
        fleet.terminate(old);
        let status = fleet.wait_exit(old, Duration::from_secs(10)).await;
        assert_eq!(status.code(), Some(0), "{}", fleet.words(old));
        let next = fleet.leader_of("unit").await;
        assert_ne!(next, old);
        witness.wait_moves(6).await;
        fleet.start_node(old);
        fleet.wait_ready().await;
        witness.wait_moves(12).await;
        let told = witness.finish().await;
        println!("round {round}: {told:?}");
        assert!(told.free > 5 && told.taken > 5, "too few were told anything: {told:?}");
        let words = fleet.words(old);
        assert!(words.contains("leadership was handed over"), "it just died: {words}");
    }
    fleet.settle().await;
    fleet.audit("unit").await;
}
