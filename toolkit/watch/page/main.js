buildLesson(document.getElementById("page"));
