const said = document.getElementById("said");
document.getElementById("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const answer = await fetch("/api/login", {
    method: "POST", headers: { "content-type": "application/json" },
    body: JSON.stringify({ token: document.getElementById("token").value.trim() }),
  }).catch(() => null);
  if (answer && answer.ok) location.replace("/" + location.hash);
  else said.textContent = answer ? "This is not the token." : "The server does not answer.";
});
