//! The operations on accounts, credentials and rights.

use utoipa::openapi::Required;
use utoipa::openapi::path::ParameterBuilder;

use super::Group;
use super::operation::{Operation, of, text};
use crate::api::publishers::CreatedPublisher;
use crate::api::{MAX_PAGE, access, publishers, rules};
use crate::app::{AccountInfo, KeyInfo};

const AUDITOR: &str = "the server role `auditor` or `admin`";
const ADMINISTRATOR: &str = "the server role `admin`";
const ACCOUNT: &str = "an account";
const ROBOT_OWNER: &str = "`own` on the robot's namespace";

pub(super) fn group() -> Group {
    let mut operations = accounts();
    operations.extend(credentials());
    operations.extend(rights());
    let description = "Who may do what.";
    Group { name: "Accounts and rights", description, operations }
}

fn accounts() -> Vec<Operation> {
    let namespace = text("namespace", "Only the robots of this namespace.");
    vec![
        Operation::get("/lode/v1/me", "showCaller", "Shows who the caller is")
            .needs("any credentials")
            .returns(200, "The caller", of::<access::Me>()),
        Operation::get("/lode/v1/accounts", "listAccounts", "Lists users and robots")
            .needs("the server role `auditor` or `admin`; with `namespace`, `own` there")
            .query(namespace)
            .pages(1000)
            .returns_page(of::<access::AccountList>()),
        Operation::post("/lode/v1/accounts", "createAccount", "Creates a user or a robot")
            .needs("the server role `admin`; for a robot, `own` on its namespace")
            .body(of::<access::AccountRequest>())
            .returns(201, "The account", of::<AccountInfo>()),
        Operation::patch("/lode/v1/accounts/{name}", "changeAccount", "Changes an account")
            .needs("the server role `admin`; for the password, the account itself")
            .body(of::<access::ChangeRequest>())
            .returns(200, "The account", of::<AccountInfo>()),
        Operation::delete(
            "/lode/v1/accounts/{name}",
            "deleteAccount",
            "Deletes an account with its tokens and roles",
        )
        .needs("the server role `admin`; for a robot, `own` on its namespace")
        .returns_nothing(204, "The account was deleted"),
        Operation::get("/lode/v1/groups", "listGroups", "Lists groups and their members")
            .needs(AUDITOR)
            .pages(MAX_PAGE)
            .returns_page(of::<access::GroupList>()),
        Operation::post("/lode/v1/groups", "createGroup", "Creates a group")
            .needs(ADMINISTRATOR)
            .body(of::<access::GroupRequest>())
            .returns_nothing(201, "The group was created"),
        Operation::delete("/lode/v1/groups/{name}", "deleteGroup", "Deletes a group with its roles")
            .needs(ADMINISTRATOR)
            .returns_nothing(204, "The group was deleted"),
        Operation::put("/lode/v1/groups/{name}/members/{account}", "addMember", "Adds a member to a group")
            .needs(ADMINISTRATOR)
            .returns_nothing(204, "The account is a member"),
        Operation::delete(
            "/lode/v1/groups/{name}/members/{account}",
            "removeMember",
            "Removes a member from a group",
        )
        .needs(ADMINISTRATOR)
        .returns_nothing(204, "The account is not a member"),
    ]
}

fn credentials() -> Vec<Operation> {
    let account = || text("account", "A robot; by default the caller's own account.");
    vec![
        Operation::get("/lode/v1/tokens", "listTokens", "Lists the tokens of an account")
            .needs(ACCOUNT)
            .query(account())
            .pages(1000)
            .returns_page(of::<access::TokenList>()),
        Operation::post("/lode/v1/tokens", "createToken", "Creates a token")
            .needs(ACCOUNT)
            .body(of::<access::TokenRequest>())
            .returns(201, "The token with its secret", of::<access::CreatedToken>()),
        Operation::post(
            "/lode/v1/tokens/{id}/rotate",
            "rotateToken",
            "Replaces a token by one with the same limits",
        )
        .needs(ACCOUNT)
        .query(account())
        .returns(201, "The new token with its secret", of::<access::CreatedToken>()),
        Operation::delete("/lode/v1/tokens/{id}", "revokeToken", "Revokes a token")
            .needs(ACCOUNT)
            .query(account())
            .returns_nothing(204, "The token was revoked"),
        Operation::get("/lode/v1/keys", "listKeys", "Lists the keys of Ollama's clients of an account")
            .needs(ACCOUNT)
            .query(account())
            .pages(MAX_PAGE)
            .returns_page(of::<access::KeyList>()),
        Operation::post("/lode/v1/keys", "addKey", "Adds a key of an Ollama client")
            .needs(ACCOUNT)
            .body(of::<access::KeyRequest>())
            .returns(201, "The key", of::<KeyInfo>()),
        Operation::delete("/lode/v1/keys/{id}", "removeKey", "Removes a key")
            .needs(ACCOUNT)
            .query(account())
            .returns_nothing(204, "The key was removed"),
        Operation::get("/lode/v1/publishers", "listPublishers", "Lists the trusted publishers of a robot")
            .needs(ROBOT_OWNER)
            .query(robot())
            .pages(MAX_PAGE)
            .returns_page(of::<publishers::PublisherList>()),
        Operation::post("/lode/v1/publishers", "addPublisher", "Lets CI jobs sign in as a robot")
            .needs(ROBOT_OWNER)
            .body(of::<publishers::PublisherRequest>())
            .returns(201, "The publisher", of::<CreatedPublisher>()),
        Operation::delete(
            "/lode/v1/publishers/{id}",
            "removePublisher",
            "Removes a publisher with the tokens that it gave",
        )
        .needs(ROBOT_OWNER)
        .query(robot())
        .returns_nothing(204, "The publisher was removed"),
    ]
}

fn robot() -> ParameterBuilder {
    text("robot", "The robot, such as `team+ci`.").required(Required::True)
}

fn rights() -> Vec<Operation> {
    let target = || text("target", "Only those of this namespace, `team/*`, or repository.");
    vec![
        Operation::get("/lode/v1/grants", "listGrants", "Lists roles and visibilities")
            .needs("the server role `auditor` or `admin`; with `target`, `own` there")
            .query(target())
            .pages(MAX_PAGE)
            .returns_page(of::<access::GrantList>()),
        Operation::put("/lode/v1/grants", "setGrant", "Sets or removes a role")
            .needs("`own` on the target")
            .body(of::<access::GrantRequest>())
            .returns_nothing(204, "The role was set or removed"),
        Operation::put("/lode/v1/visibility", "setVisibility", "Sets who may read a target without a role")
            .needs("`own` on the target")
            .body(of::<access::VisibilityRequest>())
            .returns_nothing(204, "The visibility was set"),
        Operation::get("/lode/v1/quotas", "listQuotas", "Lists the limits and the use of namespaces")
            .needs("the server role `auditor` or `admin`; with `namespace`, `own` there")
            .query(text("namespace", "Only this namespace."))
            .pages(rules::MAX_QUOTAS)
            .returns_page(of::<rules::QuotaList>()),
        Operation::put("/lode/v1/quotas", "setQuota", "Sets or removes the limit of a namespace")
            .needs(ADMINISTRATOR)
            .body(of::<rules::QuotaRequest>())
            .returns_nothing(204, "The limit was set or removed"),
        Operation::get(
            "/lode/v1/protected-tags",
            "listProtectedTags",
            "Lists the patterns of protected tags",
        )
        .needs("the server role `auditor` or `admin`; with `target`, `maintain` there")
        .query(target())
        .pages(MAX_PAGE)
        .returns_page(of::<rules::ProtectedTagList>()),
        Operation::put(
            "/lode/v1/protected-tags",
            "setProtectedTags",
            "Replaces the patterns of protected tags",
        )
        .needs("`maintain` on the target")
        .body(of::<rules::ProtectedTagsRequest>())
        .returns_nothing(204, "The patterns were replaced"),
    ]
}
