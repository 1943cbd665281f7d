//! A browser on the pages of a server: it keeps the session's cookie, and sends forms with their token.

use reqwest::RequestBuilder;

use crate::oci::{Registry, Response};

/// A signed-in browser.
pub struct Browser {
    registry: Registry,
    cookie: String,
    csrf: String,
}

impl Browser {
    /// Signs in on the page of a server.
    ///
    /// # Panics
    ///
    /// If the server refuses.
    pub async fn sign_in(registry: Registry, name: &str, password: &str) -> Self {
        let form = [("name", name), ("password", password)];
        let response =
            registry.send(form_from_page(registry.request("POST", "/login"), &form)).await.expect(303);
        Self::with_cookie(registry, &response).await
    }

    /// A browser with the session that a response has started.
    ///
    /// # Panics
    ///
    /// If the response has no cookie.
    pub async fn with_cookie(registry: Registry, response: &Response) -> Self {
        let cookie = response.header("set-cookie").expect("a cookie").split(';').next().unwrap_or_default();
        let mut browser = Self { registry, cookie: cookie.to_owned(), csrf: String::new() };
        let page = browser.get("/-/account").await.expect(200).text();
        browser.csrf = between(&page, "name=\"csrf\" value=\"", "\"").to_owned();
        browser
    }

    /// The same session at another replica.
    #[must_use]
    pub fn at(&self, registry: Registry) -> Self {
        Self { registry, cookie: self.cookie.clone(), csrf: self.csrf.clone() }
    }

    /// Opens a page.
    pub async fn get(&self, path: &str) -> Response {
        self.registry.send(self.registry.request("GET", path).header("cookie", &self.cookie)).await
    }

    /// Sends a form.
    pub async fn post(&self, path: &str, fields: &[(&str, &str)]) -> Response {
        let mut form = vec![("csrf", self.csrf.as_str())];
        form.extend(fields);
        let request = self.registry.request("POST", path).header("cookie", &self.cookie);
        self.registry.send(form_from_page(request, &form)).await
    }
}

/// A form as a page of the server sends it.
pub fn form_from_page(request: RequestBuilder, fields: &[(&str, &str)]) -> RequestBuilder {
    let body = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
    request
        .header("sec-fetch-site", "same-origin")
        .header("content-type", "application/x-www-form-urlencoded")
        .body(body)
}

/// The text between two others.
///
/// # Panics
///
/// If the first one is missing.
#[must_use]
pub fn between<'a>(text: &'a str, before: &str, after: &str) -> &'a str {
    let (_, rest) = text.split_once(before).unwrap_or_else(|| panic!("no `{before}` in {text}"));
    rest.split(after).next().unwrap_or_default()
}
