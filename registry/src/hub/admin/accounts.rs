//! `/-/admin/accounts`: the accounts of the server, for operators.

use askama::Template;
use axum::extract::State;
use axum::response::Response;
use http::StatusCode;

use super::AdminTab;
use crate::Registry;
use crate::app::AccountInfo;
use crate::auth::AccountKind;
use crate::http::Query;
use crate::http::pages::Visitor;
use crate::hub::format::query as escape;
use crate::hub::page::{Shell, framed, render};
use crate::hub::tokens::robot_url;

const PAGE: u32 = 50;

#[derive(Template)]
#[template(path = "admin_accounts.html")]
struct AccountsPage {
    shell: Shell,
    tab: AdminTab,
    accounts: Vec<AccountInfo>,
    /// With which the names begin.
    name: String,
    /// The address of the next page.
    next: Option<String>,
    is_first: bool,
    may_change: bool,
}

pub(crate) async fn get(
    State(registry): State<Registry>,
    Visitor(caller): Visitor,
    query: Query,
) -> Response {
    let page = async {
        let name = query.get("name").unwrap_or_default().trim().to_lowercase();
        let after = query.get("after");
        let found = registry.account_search(&caller, &name, after, PAGE).await?;
        let last = found.items.last().filter(|_| found.more);
        let next =
            last.map(|last| format!("/-/admin/accounts?name={}&after={}", escape(&name), escape(&last.name)));
        let page = AccountsPage {
            shell: Shell::of(&registry, &caller).await?,
            tab: AdminTab::Accounts,
            accounts: found.items,
            name,
            next,
            is_first: after.is_none(),
            may_change: registry.may_administer(&caller).await?,
        };
        Ok(render(StatusCode::OK, &page))
    };
    framed(&registry, &caller, page).await
}

impl AccountsPage {
    /// The page about an account: that of a robot, or of the namespace that a user owns. The former is for those who
    /// manage the robot.
    fn url(&self, account: &AccountInfo) -> Option<String> {
        match account.kind {
            AccountKind::User => Some(format!("/-/namespaces/{}", account.name)),
            AccountKind::Robot => self.may_change.then(|| robot_url(&account.name)),
        }
    }
}
