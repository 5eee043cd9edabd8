// Search in pages opened from a folder: browsers start no worker there, so a frame takes its place.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      const inner = frame.contentWindow
      // What the script of the worker calls, and listens to.
      inner.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      const script = inner.document.createElement("script")
      const loaded = new Promise(resolve => script.addEventListener("load", resolve))
      this.postMessage = async data => {
        await loaded
        inner.dispatchEvent(new inner.MessageEvent("message", { data }))
      }
      script.src = url
      inner.document.body.append(script)
    }
  }
}
