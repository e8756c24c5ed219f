/** The way in: user and password, a one-time link, another provider, or a token. */

import { Button, Form, html, Problem, problemText, TextField, texts, useAnswer, useEffect, useState, visible } from "../kit.js";
import { address } from "../kit/api.js";
import { Mark } from "../kit/icons.js";
import { placeToComeBack, signIn, useToken } from "../kit/session.js";

const words = texts.signIn;

/** @param {{link?: string, problem?: string}} props a problem is a word of the return from the provider */
export default function SignIn({ link = "", problem = "" }) {
  const asked = useAnswer("/sign-in");
  const ways = asked.answer;
  const isKnown = Boolean(ways || asked.problem);
  const [wished, setWished] = useState("");
  const [user, setUser] = useState("");
  const [password, setPassword] = useState("");
  const [secret, setSecret] = useState("");
  const [wrong, setWrong] = useState(
    problem ? (words.failed[/** @type {"refused"} */ (problem)] ?? words.failed.refused) : "",
  );
  const [isBusy, setBusy] = useState(false);
  const hasUsers = ways?.password ?? true;
  const way = wished || (hasUsers ? "password" : "token");

  /** @param {() => Promise<void>} enter @param {string} refused */
  async function enter(enter, refused) {
    setBusy(true);
    setWrong("");
    try {
      await enter();
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      setWrong([401, 403, 422].includes(error.status) ? refused : problemText(error));
    } finally {
      setBusy(false);
    }
  }

  useEffect(() => {
    if (link) enter(() => signIn({ link }), words.linkUsed);
  }, [link]);

  return html`
    <div class="sign-in">
      <header>
        <p class="brand"><${Mark} />${texts.product}</p>
        <h1 tabindex="-1">${words.title}</h1>
        <p class="lead">${words.lead}</p>
      </header>
      ${link && isBusy && html`<p role="status">${words.usingLink}</p>`}
      ${ways && !ways.password && html`<p class="note">${ways.link ? words.firstLink : words.noUsers}</p>`}
      ${wrong && html`<p class="trouble" role="alert">${wrong}</p>`}
      ${!isKnown
        ? html`<p role="status">${texts.navigation.loading}</p>`
        : way === "password"
        ? html`
            <${Form} class="stack" onSubmit=${() => enter(() => signIn({ user, password }), words.refused)}>
              <${TextField} label=${words.user} value=${user} onChange=${setUser} autocomplete="username" name="user" required />
              <${TextField}
                label=${words.password}
                value=${password}
                onChange=${setPassword}
                type="password"
                autocomplete="current-password"
                name="password"
                required
              />
              <button type="submit" class="button is-primary is-wide" disabled=${isBusy}>${words.submit}</button>
            <//>
          `
        : html`
            <${Form} class="stack" onSubmit=${() => enter(() => useToken(secret.trim()), words.refused)}>
              <${TextField}
                label=${words.token}
                value=${secret}
                onChange=${setSecret}
                type="password"
                name="token"
                hint=${words.tokenHint}
                required
              />
              <button type="submit" class="button is-primary is-wide" disabled=${isBusy}>${words.submit}</button>
            <//>
          `}
      ${ways?.oidc &&
      html`
        <p class="or"><span>${words.or}</span></p>
        <a class="button is-wide" href=${address("/sign-in/oidc", { return_to: placeToComeBack() })}>${visible(ways.oidc || words.provider)}</a>
      `}
      ${ways && !ways.is_safe && html`<p class="note">${words.notSafe}</p>`}
      ${hasUsers &&
      html`
        <${Button} kind="quiet" onClick=${() => setWished(way === "password" ? "token" : "password")}>
          ${way === "password" ? words.withToken : words.withPassword}
        <//>
      `}
    </div>
  `;
}
