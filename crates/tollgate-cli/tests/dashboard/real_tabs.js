// Tabs as a user has them: only the one in front is visible. Pages of playwright all count as visible, so these are opened
// and driven through the browser's own protocol.
"use strict";

class RealTabs {
  /** Tabs of one window of this browser. */
  static async of(browser) {
    const tabs = new RealTabs();
    tabs.session = await browser.newBrowserCDPSession();
    tabs.answers = new Map();
    tabs.asked = 0;
    tabs.opened = [];
    tabs.session.on("Target.receivedMessageFromTarget", ({ message }) => {
      const answer = JSON.parse(message);
      tabs.answers.get(answer.id)?.(answer);
      tabs.answers.delete(answer.id);
    });
    return tabs;
  }

  /** Opens a tab in front of the others. */
  async open(url) {
    const { targetId } = await this.session.send("Target.createTarget", { url });
    const { sessionId } = await this.session.send("Target.attachToTarget", { targetId, flatten: false });
    const tab = new RealTab(this, targetId, sessionId);
    this.opened.push(tab);
    return tab;
  }

  async close() {
    for (const { targetId } of this.opened) await this.session.send("Target.closeTarget", { targetId });
    await this.session.detach();
  }
}

class RealTab {
  constructor(tabs, targetId, sessionId) {
    Object.assign(this, { tabs, targetId, sessionId });
  }

  send(method, params = {}) {
    const id = (this.tabs.asked += 1);
    const message = JSON.stringify({ id, method, params });
    return new Promise((resolve, reject) => {
      this.tabs.answers.set(id, ({ result, error }) => (error ? reject(new Error(`${method}: ${error.message}`)) : resolve(result)));
      this.tabs.session.send("Target.sendMessageToTarget", { sessionId: this.sessionId, message }).catch(reject);
    });
  }

  /** The value of an expression in the page. */
  async evaluate(expression) {
    const { result } = await this.send("Runtime.evaluate", { expression, returnByValue: true });
    return result.value;
  }

  /** Puts the tab in front. */
  show() {
    return this.tabs.session.send("Target.activateTarget", { targetId: this.targetId });
  }

  goto(url) {
    return this.send("Page.navigate", { url });
  }

  async goBack() {
    const { currentIndex, entries } = await this.send("Page.getNavigationHistory");
    await this.send("Page.navigateToHistoryEntry", { entryId: entries[currentIndex - 1].id });
  }
}

module.exports = { RealTabs };
