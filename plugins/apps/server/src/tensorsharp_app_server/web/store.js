// Conversations in the browser's own database; nothing of them is kept on the server.

const NAME = "tensorsharp";
const TABLE = "conversations";

function request(made) {
  return new Promise((resolve, reject) => {
    made.onsuccess = () => resolve(made.result);
    made.onerror = () => reject(made.error);
  });
}

export class Store {
  static async open() {
    const opening = indexedDB.open(NAME, 1);
    opening.onupgradeneeded = () => opening.result.createObjectStore(TABLE, { keyPath: "id" });
    return new Store(await request(opening));
  }

  constructor(database) {
    this.database = database;
  }

  #table(mode) {
    return this.database.transaction(TABLE, mode).objectStore(TABLE);
  }

  /** All conversations, the latest first. */
  async all() {
    return (await request(this.#table("readonly").getAll())).sort((a, b) => b.updated - a.updated);
  }

  put(conversation) {
    return request(this.#table("readwrite").put(conversation));
  }

  /** Put a conversation again, unless it was removed meanwhile. */
  async update(conversation) {
    const table = this.#table("readwrite");
    if ((await request(table.getKey(conversation.id))) !== undefined) await request(table.put(conversation));
  }

  remove(id) {
    return request(this.#table("readwrite").delete(id));
  }
}
