//! The order in which requests get the places of a model, and what a full queue drops.

use super::*;

#[tokio::test]
async fn places_are_limited_and_the_queue_too() {
    let bench = bench(InProcess::fake(), |options| (options.num_parallel, options.max_queue) = (1, 2)).await;
    let model = bench.model(1);
    let first = bench.acquire(&model).await.unwrap();
    let wait = |wanted: ModelRequirements| {
        let scheduler = bench.scheduler.clone();
        tokio::spawn(async move { scheduler.acquire(wanted).await.map(drop) })
    };
    let (second, third) = (wait(model.clone()), wait(model.clone()));
    bench.until("both wait", || bench.scheduler.loaded()[0].users == 3).await;
    let error = bench.acquire(&model).await.err().unwrap();
    assert_eq!(error.to_string(), "server busy, please try again.  maximum pending requests exceeded");
    // A cancelled request frees its place in the queue.
    third.abort();
    assert!(third.await.is_err());
    let fourth = wait(model.clone());
    bench.until("it waits", || bench.scheduler.loaded()[0].users == 3).await;
    drop(first);
    second.await.unwrap().unwrap();
    fourth.await.unwrap().unwrap();
}

#[tokio::test]
async fn clients_take_turns() {
    let bench =
        bench(InProcess::fake(), |options| (options.num_parallel, options.max_queue) = (1, 100)).await;
    let model = bench.model(1);
    let first = bench.acquire(&model).await.unwrap();
    let order = Arc::new(std::sync::Mutex::new(Vec::new()));
    let spawn_request = |client: &str| {
        let (scheduler, order) = (bench.scheduler.clone(), order.clone());
        let wanted = ModelRequirements { client: client.into(), ..model.clone() };
        tokio::spawn(async move {
            let ticket = scheduler.acquire(wanted.clone()).await.unwrap();
            order.lock().unwrap().push(wanted.client.to_string());
            drop(ticket);
        })
    };
    let users = async |count: usize| {
        bench.until("they wait", || bench.scheduler.loaded()[0].users == count).await;
    };
    let many: Vec<_> = (0..20).map(|_| spawn_request("many")).collect();
    users(21).await;
    let few: Vec<_> = (0..2).map(|_| spawn_request("few")).collect();
    users(23).await;
    drop(first);
    for request in many.into_iter().chain(few) {
        request.await.unwrap();
    }
    let order = order.lock().unwrap();
    assert_eq!(order[..5], ["many", "few", "many", "few", "many"], "{order:?}");
}

#[tokio::test]
async fn urgent_requests_come_first() {
    let bench = bench(InProcess::fake(), |options| (options.num_parallel, options.max_queue) = (1, 4)).await;
    let model = bench.model(1);
    let first = bench.acquire(&model).await.unwrap();
    let order = Arc::new(std::sync::Mutex::new(Vec::new()));
    let spawn_request = |urgency: Urgency| {
        let (scheduler, order) = (bench.scheduler.clone(), order.clone());
        let wanted = ModelRequirements { urgency, ..model.clone() };
        tokio::spawn(async move {
            let ticket = scheduler.acquire(wanted).await?;
            order.lock().unwrap().push(urgency);
            drop(ticket);
            Ok::<_, Error>(())
        })
    };
    let users = async |count: usize| {
        bench.until("they wait", || bench.scheduler.loaded()[0].users == count).await;
    };
    let (usual, least) = (Urgency::default(), Urgency::LEAST);
    let mut requests = Vec::new();
    for (at, urgency) in [least, least, least, usual].into_iter().enumerate() {
        requests.push(spawn_request(urgency));
        users(at + 2).await;
    }
    // The queue is full: the newest of the least urgent requests makes room for a more urgent one only.
    assert!(matches!(spawn_request(least).await.unwrap(), Err(Error::Busy)));
    requests.push(spawn_request(usual));
    assert!(matches!(requests.remove(2).await.unwrap(), Err(Error::Busy)));
    users(5).await;
    drop(first);
    for request in requests {
        request.await.unwrap().unwrap();
    }
    assert_eq!(*order.lock().unwrap(), [usual, usual, least, least]);
}

#[tokio::test]
async fn a_client_that_fills_the_queue_does_not_keep_others_out() {
    let bench = bench(InProcess::fake(), |options| (options.num_parallel, options.max_queue) = (1, 4)).await;
    let model = bench.model(1);
    let first = bench.acquire(&model).await.unwrap();
    let spawn_request = |client: &str| {
        let scheduler = bench.scheduler.clone();
        let wanted = ModelRequirements { client: client.into(), ..model.clone() };
        tokio::spawn(async move { scheduler.acquire(wanted).await.map(drop) })
    };
    let users = async |count: usize| {
        bench.until("they wait", || bench.scheduler.loaded()[0].users == count).await;
    };
    let mut many = Vec::new();
    for count in 0..4 {
        many.push(spawn_request("many"));
        users(count + 2).await;
    }
    assert!(matches!(spawn_request("many").await.unwrap(), Err(Error::Busy)));
    let few = spawn_request("few");
    // Its request takes the place of the newest one.
    assert!(matches!(many.pop().unwrap().await.unwrap(), Err(Error::Busy)));
    users(5).await;
    drop(first);
    few.await.unwrap().unwrap();
    for request in many {
        request.await.unwrap().unwrap();
    }
}
