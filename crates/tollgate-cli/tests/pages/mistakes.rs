//! Tests of the runner itself: mistakes are found, and nothing is left behind.

use super::session::PageSession;
use super::{markdown, problems_of, session};

/// A page with each kind of mistake: every one is found, and the rest of the page runs on.
#[test]
fn mistakes_of_a_page_are_found() {
    let page = "\
```sh
tollgate serve --limit 2/hour
curl -d '{\"user\":\"42\"}' http://127.0.0.1:8080/v1/check
```
```json
{\"allowed\":false,…
```
```sh
echo unannounced
```
## Next
```sh
false
```
```sh
curl http://127.0.0.1:3000/
```
```sh
tollgate serve --limit fast
```
<!-- before: ls /no/such/file -->
```sh
$ echo 1; echo 2
1
```
<!-- file: b.txt -->
```text
of this page
```
```sh
cat b.txt
```
```text
of this page
```
";
    let problems = problems_of(&markdown::blocks(page).expect("blocks")).expect("a session");
    let found: Vec<(usize, bool)> = problems
        .iter()
        .zip([
            "    + {\"allowed\":true,",
            "    + unannounced\n",
            "fails with status 1 and says nothing",
            "nothing on this page listens on port 3000",
            "    + error: invalid value 'fast'",
            "ls: cannot access '/no/such/file'",
        ])
        .map(|((line, problem), part)| (*line, problem.contains(part)))
        .collect();
    assert_eq!(
        found,
        [(6, true), (9, true), (13, true), (16, true), (19, true), (23, true)],
        "{problems:?}"
    );
    assert_eq!(problems.len(), found.len(), "{problems:?}");
}

/// A session that ends leaves no process behind.
#[test]
fn servers_of_a_page_end_with_it() {
    let mut session = PageSession::start([].into_iter()).expect("a session");
    let started = session.run("tollgate serve --limit 2/hour", true).expect("a server");
    assert!(started.text.ends_with("ready\n"), "{}", started.text);
    let id = session.run("pidof tollgate", false).expect("its id").text;
    let sleeper = session.run("sleep 600 & echo $!", false).expect("a process").text;
    assert!(session::is_running(id.trim()) && session::is_running(sleeper.trim()));
    drop(session);
    testkit::wait::until_true("both to end", || {
        !session::is_running(id.trim()) && !session::is_running(sleeper.trim())
    });
}
