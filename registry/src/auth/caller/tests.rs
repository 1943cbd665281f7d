//! The decisions of the policy, as tables.

use super::super::scope::Requested;
use super::*;

fn account(server_role: Option<ServerRole>, scope: Scope) -> Identity {
    let (id, kind, name) = (Uuid::nil(), AccountKind::User, "alice".to_owned());
    let (groups, epoch, credential) = (Vec::new(), 0, Credential::Password);
    Identity::Account(Arc::new(Account { id, kind, name, server_role, groups, epoch, credential, scope }))
}

fn limited(access: Access, targets: &[&str]) -> Scope {
    let targets = targets.iter().map(|text| text.parse().unwrap()).collect();
    Scope { access, targets, requested: None }
}

fn token(scopes: &[&str]) -> Scope {
    let requested = Requested::parse(scopes.iter().copied());
    Scope { requested: Some(requested), ..Scope::default() }
}

#[test]
fn a_refusal_names_what_is_missing() {
    let repository: Repository = "team/app".parse().unwrap();
    let (role, namespace) = (Some(Role::Read), "team/*".parse().unwrap());
    let full = account(None, Scope::default());
    let narrow = account(None, limited(Access::Full, &["team/app"]));
    for (caller, action, target, expected) in [
        (&full, Action::Push, Target::Repository(&repository), "it needs the role `write` on `team/app`"),
        (&full, Action::Own, Target::Settings(&namespace), "it needs the role `own` on `team/*`"),
        (&full, Action::Administer, Target::Server, "it needs the server role `admin`"),
        (&full, Action::Inspect, Target::Workers, "it needs the server role `auditor` or `admin`"),
        // Clients of the registry API ask for a token of each push, which does not make it limited.
        (
            &account(None, token(&["repository:team/app:push"])),
            Action::Push,
            Target::Repository(&repository),
            "it needs the role `write` on `team/app`",
        ),
        (
            &account(None, limited(Access::Read, &[])),
            Action::Push,
            Target::Repository(&repository),
            "the token or key is limited; it needs one with the access `write`",
        ),
        (
            &narrow,
            Action::Delete,
            Target::Repository(&repository),
            "it needs the role `maintain` on `team/app`, and a token or key that is not limited to less",
        ),
        (
            &Identity::Worker { id: Uuid::nil() },
            Action::Push,
            Target::Repository(&repository),
            "workers may only read models and run inference",
        ),
    ] {
        let rights = Rights { role, visibility: Visibility::Private };
        let refused = decide(caller, action, target, rights).into_result(caller, action, target);
        assert_eq!(refused.unwrap_err().to_string(), format!("not allowed: {expected}"));
    }
}

/// The decisions for Pull, Infer, Push, Delete and Own on `team/app`: (A)llow, (4)01, (S)cope, (H)ide, (D)eny.
fn decisions(caller: &Identity, role: Option<Role>, visibility: Visibility) -> String {
    let repository: Repository = "team/app".parse().unwrap();
    [Action::Pull, Action::Infer, Action::Push, Action::Delete, Action::Own]
        .map(|action| {
            match decide(caller, action, Target::Repository(&repository), Rights { role, visibility }) {
                Decision::Allow => 'A',
                Decision::Authenticate => '4',
                Decision::Rescope => 'S',
                Decision::Hide => 'H',
                Decision::Deny => 'D',
            }
        })
        .into_iter()
        .collect()
}

#[test]
fn repositories_by_role_and_visibility() {
    use Visibility::{Internal, Private, Public};
    let guest = Identity::Guest { scopes: Arc::new([]) };
    let user = account(None, Scope::default());
    for (caller, role, visibility, expect) in [
        (&Identity::Anonymous, None, Private, "44444"),
        (&Identity::Anonymous, None, Internal, "44444"),
        (&Identity::Anonymous, None, Public, "AA444"),
        (&guest, None, Private, "44444"),
        (&guest, None, Public, "AA444"),
        (&user, None, Private, "HHHHH"),
        (&user, None, Internal, "AADDD"),
        (&user, None, Public, "AADDD"),
        (&user, Some(Role::Read), Private, "AADDD"),
        (&user, Some(Role::Write), Private, "AAADD"),
        (&user, Some(Role::Maintain), Private, "AAAAD"),
        (&user, Some(Role::Own), Private, "AAAAA"),
        (&account(Some(ServerRole::Auditor), Scope::default()), None, Private, "AADDD"),
        (&account(Some(ServerRole::Admin), Scope::default()), None, Private, "AAAAA"),
        (&Identity::Worker { id: Uuid::nil() }, None, Private, "AADDD"),
        (&Identity::Internal, None, Private, "AAAAA"),
    ] {
        assert_eq!(decisions(caller, role, visibility), expect, "{caller:?} {role:?} {visibility:?}");
    }
}

#[test]
fn scopes_narrow_and_never_add() {
    for (scope, role, expect) in [
        (limited(Access::Infer, &[]), Some(Role::Own), "DADDD"),
        (limited(Access::Read, &[]), Some(Role::Own), "AADDD"),
        (limited(Access::Write, &[]), Some(Role::Own), "AAADD"),
        (limited(Access::Own, &[]), Some(Role::Own), "AAAAA"),
        (limited(Access::Own, &[]), Some(Role::Read), "AADDD"),
        (limited(Access::Own, &[]), None, "HHHHH"),
        (limited(Access::Full, &["team/*"]), Some(Role::Own), "AAAAA"),
        (limited(Access::Full, &["team/app"]), Some(Role::Own), "AAAAA"),
        (limited(Access::Full, &["other/*", "team/app/x"]), Some(Role::Own), "HHHHH"),
        (limited(Access::Full, &["other/*"]), None, "HHHHH"),
        (token(&[]), Some(Role::Own), "SSSSS"),
        (token(&["repository:team/app:pull"]), Some(Role::Own), "AASSS"),
        (token(&["repository:team/app:pull,push"]), Some(Role::Own), "AAASS"),
        (token(&["repository:team/app:*"]), Some(Role::Write), "AAADD"),
        (token(&["repository:team/other:*"]), Some(Role::Write), "SSSDD"),
        (token(&["repository:team/app:*"]), None, "HHHHH"),
    ] {
        let caller = account(None, scope);
        assert_eq!(decisions(&caller, role, Visibility::Private), expect, "{caller:?} {role:?}");
    }
}

#[test]
fn owners_grant() {
    let owner = Rights { role: Some(Role::Own), visibility: Visibility::Private };
    let maintainer = Rights { role: Some(Role::Maintain), visibility: Visibility::Public };
    for (caller, target, rights, expect) in [
        (Identity::Anonymous, "team/*", owner, Decision::Authenticate),
        (account(None, Scope::default()), "team/*", owner, Decision::Allow),
        (account(None, Scope::default()), "team/*", maintainer, Decision::Deny),
        (account(Some(ServerRole::Admin), Scope::default()), "team/*", Rights::default(), Decision::Allow),
        (account(Some(ServerRole::Auditor), Scope::default()), "team/*", Rights::default(), Decision::Deny),
        (account(None, limited(Access::Maintain, &[])), "team/*", owner, Decision::Deny),
        (account(None, limited(Access::Own, &["team/*"])), "team/*", owner, Decision::Allow),
        (account(None, limited(Access::Own, &["team/*"])), "team/app", owner, Decision::Allow),
        (account(None, limited(Access::Own, &["team"])), "team/*", owner, Decision::Deny),
        (account(None, limited(Access::Own, &["other/*"])), "team/*", owner, Decision::Deny),
        (account(None, token(&["repository:team/app:*"])), "team/app", owner, Decision::Deny),
        (Identity::Worker { id: Uuid::nil() }, "team/*", owner, Decision::Deny),
    ] {
        let parsed: AccessTarget = target.parse().unwrap();
        let decision = decide(&caller, Action::Own, Target::Settings(&parsed), rights);
        assert_eq!(decision, expect, "{caller:?} {target}");
    }
}

#[test]
fn the_server_is_for_administrators() {
    let on_server = |caller: &Identity, action: Action| {
        decide(
            caller,
            action,
            Target::Server,
            Rights { role: Some(Role::Own), visibility: Visibility::Public },
        )
    };
    let admin = |scope: Scope| account(Some(ServerRole::Admin), scope);
    for (caller, inspect, administer) in [
        (Identity::Anonymous, Decision::Authenticate, Decision::Authenticate),
        (account(None, Scope::default()), Decision::Deny, Decision::Deny),
        (account(Some(ServerRole::Auditor), Scope::default()), Decision::Allow, Decision::Deny),
        (admin(Scope::default()), Decision::Allow, Decision::Allow),
        (admin(limited(Access::Own, &[])), Decision::Deny, Decision::Deny),
        (admin(token(&["repository:team/app:*"])), Decision::Deny, Decision::Deny),
        (Identity::Worker { id: Uuid::nil() }, Decision::Deny, Decision::Deny),
        (Identity::Internal, Decision::Allow, Decision::Allow),
    ] {
        assert_eq!(on_server(&caller, Action::Inspect), inspect, "{caller:?}");
        assert_eq!(on_server(&caller, Action::Administer), administer, "{caller:?}");
    }
    // The ping asks clients without credentials for a login, and accepts every token.
    assert_eq!(on_server(&Identity::Anonymous, Action::SignIn), Decision::Authenticate);
    let guest = Identity::Guest { scopes: Arc::new([]) };
    assert_eq!(on_server(&guest, Action::SignIn), Decision::Allow);
    assert_eq!(on_server(&account(None, token(&[])), Action::SignIn), Decision::Allow);
}
