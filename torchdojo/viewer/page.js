// The page of write_page: draws playbacks with MeshCat's three.js, camera and renderer. `torchdojo.open` starts it.
"use strict";
const torchdojo = (() => {
  const { THREE, Viewer } = MeshCat;
  const PALETTE = ["#2f5d8c", "#e07b39", "#3a9d5d", "#8e5bb5", "#c4416b", "#2aa5a0", "#a08a2c", "#6b7785"];
  const SKY = "#e9edf2";
  const element = (id) => document.getElementById(id);
  const color = (text) => new THREE.Color(text).convertSRGBToLinear();
  let model, viewer, camera, sun, playbacks, plots = [], radius = 1;
  let start = 0, end = 1, time = 0, playing = false, dirty = true, clock = 0, anchor = null;

  // ---- data: a length, a JSON header, and arrays that the header names by offset [bytes], length and type
  function decode(buffer) {
    const size = new DataView(buffer).getUint32(0, true);
    return JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, size)), (_, value) =>
      value && value.array ? new (value.array === "f" ? Float32Array : Uint32Array)(buffer, 4 + size + value.offset, value.length) : value);
  }

  // ---- solids
  const ALONG_Z = Math.PI / 2;  // three.js builds cylinders and lathes along y
  const GEOMETRY = {
    sphere: ([r]) => new THREE.SphereGeometry(r, 32, 20),
    box: ([x, y, z]) => new THREE.BoxGeometry(x, y, z),
    cylinder: ([r, length]) => new THREE.CylinderGeometry(r, r, length, 40).rotateX(ALONG_Z),
    capsule: ([r, length]) => {
      const profile = [];
      for (let i = 0; i <= 24; i++) {
        const angle = (i / 24 - 0.5) * Math.PI;
        profile.push(new THREE.Vector2(r * Math.cos(angle), r * Math.sin(angle) + (i < 12 ? -length / 2 : length / 2)));
      }
      return new THREE.LatheGeometry(profile, 32).rotateX(ALONG_Z);
    },
    ellipsoid: ([x, y, z]) => new THREE.SphereGeometry(1, 32, 20).scale(x, y, z),
  };

  function surface(mesh, scale) {
    const geometry = new THREE.BufferGeometry();
    geometry.setAttribute("position", new THREE.BufferAttribute(mesh.vertices.slice(), 3));
    geometry.setIndex(new THREE.BufferAttribute(mesh.faces, 1));
    return geometry.scale(...scale);
  }

  function place(object, position, [w, x, y, z]) {
    object.position.set(...position);
    object.quaternion.set(x, y, z, w);
    return object;
  }

  function solid(part, scene, paint) {
    part.geometry ||= part.kind === "mesh" ? surface(scene.meshes[part.mesh], part.size) : GEOMETRY[part.kind](part.size);
    part.edges ||= new THREE.EdgesGeometry(part.geometry, 25);  // both are shared by the playbacks of a scene
    const material = new THREE.MeshStandardMaterial({ roughness: 0.7, metalness: 0.05, flatShading: part.kind === "mesh",
      polygonOffset: true, polygonOffsetFactor: 1, polygonOffsetUnits: 1 });
    const [r, g, b, opacity] = part.color || [...new THREE.Color(paint).lerp(new THREE.Color("#ffffff"), 0.25).toArray(), 1];
    material.userData = { color: new THREE.Color(r, g, b).convertSRGBToLinear(), opacity };
    const mesh = place(new THREE.Mesh(part.geometry, material), part.position, part.orientation);
    const edges = new THREE.LineBasicMaterial({ color: "#101820", transparent: true });
    mesh.add(new THREE.LineSegments(part.edges, edges));
    mesh.userData = { role: part.role, edges };
    return mesh;
  }

  // A large square with a grid, solid below. The cells tell the scale.
  function ground(part, cell) {
    const canvas = Object.assign(document.createElement("canvas"), { width: 256, height: 256 });
    const ink = canvas.getContext("2d");
    ink.fillStyle = "#d3d9e0";
    ink.fillRect(0, 0, 256, 256);
    ink.strokeStyle = "#a9b3bf";
    ink.lineWidth = 4;
    ink.strokeRect(0, 0, 256, 256);
    const texture = new THREE.CanvasTexture(canvas);
    texture.encoding = THREE.sRGBEncoding;
    texture.wrapS = texture.wrapT = THREE.RepeatWrapping;
    texture.repeat.set(1000, 1000);
    texture.anisotropy = viewer.renderer.capabilities.getMaxAnisotropy();
    const plane = new THREE.Mesh(new THREE.PlaneGeometry(1000 * cell, 1000 * cell), new THREE.MeshLambertMaterial({ map: texture }));
    plane.receiveShadow = true;
    return place(plane, part.position, part.orientation);
  }

  // Forces of feet run inside of legs, so arrows are drawn over the bodies.
  const RED = new THREE.MeshLambertMaterial({ color: color("#d1351b"), emissive: color("#5a1005"), depthTest: false, transparent: true });
  const ARROW = [new THREE.CylinderGeometry(1, 1, 1, 12).translate(0, 0.5, 0), new THREE.ConeGeometry(2.4, 6, 16).translate(0, -3, 0),
    new THREE.SphereGeometry(1.5, 16, 10)];
  const arrow = () => new THREE.Group().add(...ARROW.map((geometry) => Object.assign(new THREE.Mesh(geometry, RED), { renderOrder: 3 })));

  const UP = new THREE.Vector3(0, 1, 0);
  function aim(group, point, force) {
    const [shaft, head, dot] = group.children, thick = 0.009 * radius;
    const size = Math.hypot(...force), direction = new THREE.Vector3(...force).normalize();
    const length = Math.min((size / model.force) * 0.6, 1.2) * radius;
    group.position.set(...point);
    dot.scale.setScalar(thick);
    shaft.visible = head.visible = length > 0.02 * radius;
    if (!shaft.visible) return;
    group.quaternion.setFromUnitVectors(UP, direction);
    shaft.scale.set(thick, Math.max(length - 6 * thick, 1e-6), thick);
    head.position.set(0, Math.max(length, 3 * thick), 0);
    head.scale.setScalar(thick);
  }

  // Tendons: a rod for each straight part, thin and dark, or from blue to red with the share of the largest load.
  const ROD = new THREE.CylinderGeometry(1, 1, 1, 8, 1, true).translate(0, 0.5, 0);
  const SLACK = color("#2a6fdb"), TAUT = color("#d1351b"), PLAIN = color("#7a2f2f");
  class Cord {
    constructor({ count, points, shares }) {
      Object.assign(this, { count, points, shares, group: new THREE.Group() });
      this.material = new THREE.MeshStandardMaterial({ roughness: 0.6, color: PLAIN });
      for (let i = 0; i + 1 < count; i++) this.group.add(new THREE.Mesh(ROD, this.material));
    }

    pose(k, thick) {
      const point = (i) => new THREE.Vector3(...this.points.subarray(3 * (k * this.count + i), 3 * (k * this.count + i) + 3));
      this.group.children.forEach((rod, i) => {
        const from = point(i), way = point(i + 1).sub(from), length = way.length();
        rod.visible = length > 1e-9;  // false between branches, where points are NaN
        if (!rod.visible) return;
        rod.position.copy(from);
        rod.quaternion.setFromUnitVectors(UP, way.divideScalar(length));
        rod.scale.set(thick, length, thick);
      });
      if (this.shares) this.material.color.copy(SLACK).lerp(TAUT, this.shares[k]);
    }
  }

  // ---- playbacks
  class Player {
    constructor(data, index) {
      Object.assign(this, data, { index, paint: PALETTE[index % PALETTE.length], shown: true, scene: model.scenes[data.scene] });
      this.count = this.times.length;
      this.group = new THREE.Group();
      this.bodies = this.scene.bodies.map(() => new THREE.Group());
      this.world = new THREE.Group();
      this.solids = [];
      const visual = new Set(), collision = new Set();
      for (const part of this.scene.parts) {
        if (part.kind === "plane") continue;
        const mesh = solid(part, this.scene, this.paint);
        mesh.userData.body = part.body;
        if (part.role === "visual") visual.add(part.body);
        if (part.role === "collision") collision.add(part.body);
        (part.body < 0 ? this.world : this.bodies[part.body]).add(mesh);
        this.solids.push(mesh);
      }
      Object.assign(this, { visual, collision });
      this.axes = this.scene.joints.map((joint) => {
        const axes = place(new THREE.AxesHelper(1), joint.position, joint.orientation);
        axes.material.depthTest = false;
        axes.renderOrder = 2;
        this.bodies[joint.body].add(axes);
        return axes;
      });
      this.arrows = [];
      for (let k = 0; this.starts && k < this.count; k++)
        while (this.arrows.length < this.starts[k + 1] - this.starts[k]) this.arrows.push(arrow());
      this.cords = (this.strings || []).map((string) => new Cord(string));
      this.group.add(this.world, ...this.bodies, ...this.arrows, ...this.cords.map((cord) => cord.group));
    }

    // The last frame at or before a time. Times are float32, so a frame may round to just after the time.
    frame(t) {
      const limit = t + 1e-6 * (1 + Math.abs(t));
      let low = 0, high = this.count - 1;
      while (low < high) {
        const middle = (low + high + 1) >> 1;
        if (this.times[middle] <= limit) low = middle; else high = middle - 1;
      }
      return low;
    }

    center(t) { return new THREE.Vector3(...this.centers.subarray(3 * this.frame(t), 3 * this.frame(t) + 3)); }

    span([first, last]) { return [this.times[first], this.times[Math.min(last + 1, this.count - 1)]]; }

    isGap(k) { return this.gaps.some(([first, last]) => first <= k && k <= last); }

    pose(t) {
      const k = this.frame(t), n = this.bodies.length;
      this.gap = this.isGap(k);
      for (const body of this.bodies) body.visible = !this.gap;
      this.bodies.forEach((body, i) => {
        const p = this.poses.subarray(7 * (k * n + i), 7 * (k * n + i) + 7);
        if (!this.gap) place(body, p.subarray(0, 3), p.subarray(3));
      });
      for (const cord of this.cords) {
        cord.group.visible = !this.gap;
        if (!this.gap) cord.pose(k, 0.006 * radius);
      }
      this.arrows.forEach((group, i) => {
        const row = this.starts[k] + i;
        group.visible = row < this.starts[k + 1] && !this.gap && element("forces").checked;
        if (group.visible) aim(group, this.pushes.subarray(6 * row, 6 * row + 3), this.pushes.subarray(6 * row + 3, 6 * row + 6));
      });
    }

    // In one picture the first playback keeps its colors, and the others are tinted and translucent.
    style(split) {
      const ghost = !split && this.index > 0, collision = element("collision").checked;
      for (const mesh of this.solids) {
        const { role, body, edges } = mesh.userData, { color: own, opacity } = mesh.material.userData;
        mesh.material.color.copy(own);
        if (ghost) mesh.material.color.lerp(color(this.paint), 0.75);
        mesh.material.opacity = ghost ? 0.45 * opacity : opacity;
        mesh.material.transparent = mesh.material.opacity < 1;
        mesh.material.needsUpdate = true;
        edges.opacity = ghost ? 0.2 : 0.35;
        mesh.castShadow = !ghost;
        mesh.receiveShadow = !ghost;
        mesh.visible = collision ? role !== "visual" || !this.collision.has(body) : role !== "collision" || !this.visual.has(body);
      }
      for (const axes of this.axes) {
        axes.visible = element("frames").checked;
        axes.scale.setScalar(0.15 * radius);
      }
    }
  }

  // ---- picture
  function prepare() {
    viewer = new Viewer(element("picture"), false);
    viewer.gui.domElement.style.display = "none";
    viewer.set_3d_pane_size = () => { dirty = true; };  // MeshCat would take the whole window
    viewer.controls.dispose();
    viewer.scene.clear();
    viewer.scene.rotation.set(0, 0, 0);  // MeshCat turns its scene, so that y is up; here z is up everywhere
    viewer.scene.background = new THREE.Color(SKY);
    viewer.scene.fog = new THREE.Fog(SKY, 1, 100);
    viewer.renderer.outputEncoding = THREE.sRGBEncoding;
    viewer.scene.fog.color.convertSRGBToLinear();
    sun = new THREE.DirectionalLight("#fffaf0", 0.7);
    sun.castShadow = true;
    sun.shadow.mapSize.set(2048, 2048);
    viewer.scene.add(new THREE.HemisphereLight("#ffffff", "#a3acb8", 0.58), sun, sun.target);
    camera = new THREE.PerspectiveCamera(35, 1, 0.01, 1000);
    camera.up.set(0, 0, 1);
    viewer.set_camera(camera);
    viewer.controls.addEventListener("change", () => { dirty = true; });
  }

  // Size [m] of what is drawn, along the axes of the world, at the first frame that has poses.
  function measure() {
    const box = new THREE.Box3();
    for (const player of playbacks) {
      let k = 0;
      while (k < player.count - 1 && player.isGap(k)) k++;
      player.pose(player.times[k]);
      player.group.updateMatrixWorld(true);
      for (const body of player.bodies) body.traverse((child) => {
        if (!child.isMesh || player.gap) return;
        box.union(new THREE.Box3().setFromObject(child).translate(player.center(player.times[k]).negate()));
      });
    }
    return box.isEmpty() ? new THREE.Vector3(1, 1, 1) : box.getSize(new THREE.Vector3());
  }

  // The robot fills about two thirds of the picture, seen from its front, its right, and above.
  function look(size) {
    const view = new THREE.Vector3(0.66, -0.64, 0.4).normalize(), flat = Math.hypot(size.x, size.y);
    const half = Math.max(Math.hypot(view.x, view.y) * size.z + view.z * flat, flat / 1.2, 1e-3) / 2;
    anchor = playbacks[0].center(start);
    viewer.controls.target.copy(anchor);
    camera.near = radius / 50;
    camera.far = radius * 400;
    camera.position.copy(anchor).addScaledVector(view, flat / 2 + (1.1 * half) / Math.tan((camera.fov / 360) * Math.PI));
    viewer.controls.update();
  }

  function panes() {
    const shown = playbacks.filter((player) => player.shown), { clientWidth: w, clientHeight: h } = element("picture");
    if (!element("split").checked) return [{ players: shown, x: 0, y: 0, w, h }];
    let columns = 1, rows = 1, largest = 0;
    for (let c = 1; c <= shown.length; c++) {
      const r = Math.ceil(shown.length / c), size = Math.min(w / c / 1.2, h / r);
      if (size > largest) [columns, rows, largest] = [c, r, size];
    }
    return shown.map((player, i) => ({ players: [player], x: ((i % columns) * w) / columns, y: (Math.floor(i / columns) * h) / rows,
      w: w / columns, h: h / rows }));
  }

  function draw() {
    const { renderer, scene, controls } = viewer, { clientWidth: w, clientHeight: h } = element("picture");
    if (!w || !h) return;  // a page in a hidden frame
    const size = renderer.getSize(new THREE.Vector2());
    if (size.x !== w || size.y !== h) { renderer.setSize(w, h); plots.forEach((plot) => plot.paint()); }
    const split = element("split").checked, follow = element("follow").checked;
    for (const player of playbacks) player.pose(time);
    const first = playbacks.find((player) => player.shown) || playbacks[0], center = first.center(follow ? time : start);
    if (follow) {
      const moved = center.clone().sub(anchor);
      controls.target.add(moved);
      camera.position.add(moved);
      anchor.copy(center);
    }
    controls.update();
    const eye = camera.position.clone(), distance = eye.distanceTo(controls.target);
    Object.assign(scene.fog, { near: 4 * distance, far: 25 * distance });
    renderer.setScissorTest(true);
    const labels = [];
    for (const pane of panes()) {
      const shift = split ? pane.players[0].center(follow ? time : start).sub(center) : new THREE.Vector3();
      for (const player of playbacks) player.group.visible = pane.players.includes(player);
      camera.aspect = pane.w / pane.h;
      const back = Math.max(0, 1.2 / camera.aspect - 1);  // a narrow picture is taken from farther away
      camera.position.copy(eye).addScaledVector(eye.clone().sub(controls.target), back).add(shift);
      camera.updateProjectionMatrix();
      sun.target.position.copy(controls.target).add(shift);
      sun.position.copy(sun.target.position).add(new THREE.Vector3(1.2, 0.5, 3).multiplyScalar(3 * radius));
      renderer.setViewport(pane.x, h - pane.y - pane.h, pane.w, pane.h);
      renderer.setScissor(pane.x, h - pane.y - pane.h, pane.w, pane.h);
      renderer.render(scene, camera);
      if (split) labels.push(`<div style="left:${pane.x + 6}px;top:${pane.y + 4}px">${tag(pane.players[0])}</div>`);
    }
    camera.position.copy(eye);
    element("labels").innerHTML = labels.join("");
    element("legend").style.display = split || playbacks.length < 2 ? "none" : "";
    const lost = playbacks.filter((player) => player.gap).map((player) => player.label || "playback");
    const names = lost.map(escaped).join(", ");
    element("note").innerHTML = (names ? `<span class="gap">no finite pose at this time: ${names}</span><br>` : "")
      + (model.remarks.length ? model.remarks.map(escaped).join("<br>") + "<br>" : "")
      + (model.ground ? `grid ${model.cell} m` : "")
      + (element("forces").checked && model.force ? ` · arrow of ${short(0.6 * radius, 2)} m: ${short(model.force, 2)} N` : "");
  }

  const escaped = (text) => Object.assign(document.createElement("span"), { textContent: text }).innerHTML;
  const tag = (player) => `<i style="background:${player.paint}"></i>${escaped(player.label)}`;

  // ---- time
  function seek(t) {
    time = Math.min(Math.max(t, start), end);
    dirty = true;
  }

  function play(yes) {
    if (yes && time >= end) time = start;
    playing = yes && end > start;
    element("play").textContent = playing ? "❚❚" : "▶";
  }

  const reading = (t, frame, count) => `${t.toFixed(3)} of ${end.toFixed(3)} s · frame ${frame} / ${count}`;

  function tick(now) {
    requestAnimationFrame(tick);
    const passed = Math.min((now - clock) / 1000, 0.25);
    clock = now;
    if (playing) seek(time >= end ? start : time + passed * element("speed").value);
    if (!dirty) return;
    dirty = false;
    const frame = playbacks[0].frame(time), { count } = playbacks[0];
    element("time").value = time;
    element("clock").textContent = reading(time, frame + 1, count);
    draw();
    plots.forEach((plot) => plot.cursor());
  }

  // ---- plots: a curve of each playback that has it, and a cursor at the time
  class Plot {
    constructor(name) {
      this.name = name;
      this.lines = playbacks.filter((player) => name in player.curves).map((player) => ({ player, values: player.curves[name] }));
      const finite = this.lines.flatMap((line) => Array.from(line.values).filter(Number.isFinite));
      this.low = finite.reduce((a, b) => Math.min(a, b), Infinity);
      this.high = finite.reduce((a, b) => Math.max(a, b), -Infinity);
      if (!finite.length) [this.low, this.high] = [0, 1];
      if (this.high - this.low < 1e-9 * Math.max(1, Math.abs(this.high))) { this.low -= 0.5; this.high += 0.5; }
      this.canvas = element("plots").appendChild(document.createElement("canvas"));
      this.still = document.createElement("canvas");
      const scrub = (event) => { if (event.buttons) { play(false); seek(start + ((event.offsetX - 56) / this.span) * (end - start)); } };
      this.canvas.addEventListener("pointerdown", (event) => { this.canvas.setPointerCapture(event.pointerId); scrub(event); });
      this.canvas.addEventListener("pointermove", scrub);
    }

    x(t) { return 56 + ((t - start) / (end - start || 1)) * this.span; }
    y(value) { return 124 - ((value - this.low) / (this.high - this.low)) * 86; }

    paint() {
      const ratio = window.devicePixelRatio || 1, width = this.canvas.clientWidth;
      this.span = width - 70;
      if (!width) return;
      for (const canvas of [this.canvas, this.still]) { canvas.width = width * ratio; canvas.height = 146 * ratio; }
      const ink = this.still.getContext("2d");
      ink.scale(ratio, ratio);
      ink.font = "11px system-ui, sans-serif";
      ink.fillStyle = "#f3d6d3";
      for (const { player } of this.lines) for (const [from, to] of player.gaps.map((gap) => player.span(gap))) {
        ink.fillRect(this.x(from), 36, Math.max(this.x(to) - this.x(from), 1.5), 90);
      }
      ink.fillStyle = "#567";
      ink.strokeStyle = "#e3e8ee";
      for (const value of ticks(this.low, this.high, 4)) {
        ink.textAlign = "right";
        ink.fillText(Math.abs(value) < 1e-3 ? short(value) : value, 50, this.y(value) + 4);
        ink.strokeRect(56, this.y(value), this.span, 0);
      }
      ink.textAlign = "center";
      for (const value of ticks(start, end, 6)) ink.fillText(value + (value === 0 ? " s" : ""), this.x(value), 140);
      this.lines.forEach(({ player, values }) => {
        ink.strokeStyle = player.paint;
        ink.lineWidth = 1.5;
        ink.beginPath();
        let pen = false;
        values.forEach((value, k) => {
          if (Number.isFinite(value)) ink[pen ? "lineTo" : "moveTo"](this.x(player.times[k]), this.y(value));
          pen = Number.isFinite(value);
        });
        ink.stroke();
      });
      this.cursor();
    }

    cursor() {
      if (!this.canvas.clientWidth) return;
      const ratio = window.devicePixelRatio || 1, ink = this.canvas.getContext("2d");
      ink.setTransform(1, 0, 0, 1, 0, 0);
      ink.clearRect(0, 0, this.canvas.width, this.canvas.height);
      ink.drawImage(this.still, 0, 0);
      ink.setTransform(ratio, 0, 0, ratio, 0, 0);
      ink.font = "600 12px system-ui, sans-serif";
      ink.fillStyle = "#223";
      ink.fillText(this.name, 56, 14);
      let left = 56;
      for (const { player, values } of this.lines.slice(0, 6)) {
        const text = short(values[player.frame(time)]);
        ink.fillStyle = player.paint;
        ink.fillText(text, left, 29);
        left += 10 + ink.measureText(text).width;
      }
      ink.fillStyle = "#223";
      ink.fillRect(this.x(time) - 0.5, 34, 1, 92);
    }
  }

  function short(value, digits = 4) {
    const size = Math.abs(value);
    return size && (size < 1e-3 || size >= 1e5) ? value.toExponential(2) : String(Number(value.toPrecision(digits)));
  }

  function ticks(low, high, count) {
    const raw = (high - low) / count || 1, power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= raw);
    const values = [];
    for (let i = Math.ceil(low / step); i * step <= high; i++) values.push(Number((i * step).toPrecision(6)));
    return values;
  }

  // ---- the page
  function open(buffer) {
    model = decode(buffer);
    prepare();
    playbacks = model.playbacks.map((data, index) => new Player(data, index));
    start = Math.min(...playbacks.map((player) => player.times[0]));
    end = Math.max(...playbacks.map((player) => player.times[player.count - 1]));
    const size = measure();
    radius = Math.max(size.length() / 2, 1e-3);
    model.cell = [1000, 500, 100, 50, 10, 5, 1, 0.5, 0.1, 0.05, 0.01].find((cell) => cell <= radius) || 0.001;
    const planes = playbacks.flatMap((player) => player.scene.parts).filter((part) => part.kind === "plane");
    const places = new Map(planes.map((part) => [JSON.stringify([part.position, part.orientation]), part]));  // one of those that coincide
    for (const part of places.values()) viewer.scene.add(ground(part, model.cell));
    model.ground = places.size > 0;
    Object.assign(sun.shadow, { normalBias: 0.004 * radius, bias: 0, radius: 3 });
    const side = 3 * radius;
    Object.assign(sun.shadow.camera, { left: -side, right: side, top: side, bottom: -side, near: radius, far: 10 * side });
    for (const player of playbacks) viewer.scene.add(player.group);
    look(size);

    const style = () => { dirty = true; for (const player of playbacks) player.style(element("split").checked); };
    const has = { collision: playbacks.some((player) => player.visual.size && player.collision.size), split: playbacks.length > 1,
      frames: playbacks.some((player) => player.axes.length), forces: playbacks.some((player) => player.arrows.length) };
    for (const [id, useful] of Object.entries(has)) element(id).parentElement.style.display = useful ? "" : "none";
    for (const id of ["follow", "forces", "frames", "collision", "split"]) element(id).addEventListener("change", style);
    element("split").checked = model.side_by_side && playbacks.length > 1;
    element("follow").addEventListener("change", () => anchor.copy(playbacks[0].center(time)));
    element("play").addEventListener("click", () => play(!playing));
    Object.assign(element("time"), { min: start, max: end });
    element("time").addEventListener("input", () => { play(false); seek(Number(element("time").value)); });
    window.addEventListener("resize", () => { dirty = true; });
    document.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key], { times, count } = playbacks[0];
      if (event.key === " ") { event.preventDefault(); play(!playing); }
      if (step) { event.preventDefault(); play(false); seek(times[Math.min(Math.max(playbacks[0].frame(time) + step, 0), count - 1)]); }
    });
    for (const player of playbacks) {
      const label = element("legend").appendChild(document.createElement("label"));
      label.innerHTML = `<input type="checkbox" checked>${tag(player)}`;
      label.firstChild.addEventListener("change", (event) => { player.shown = event.target.checked; style(); });
    }
    const share = (t) => (100 * (t - start)) / (end - start || 1);
    element("gaps").innerHTML = playbacks.flatMap((player) => player.gaps.map((gap) => player.span(gap))).map(([from, to]) =>
      `<div style="left:${share(from)}%;width:${Math.max(share(to) - share(from), 0.4)}%"></div>`).join("");
    element("clock").style.minWidth = reading(end, playbacks[0].count, playbacks[0].count).length + "ch";  // the bar never breaks anew
    plots = [...new Set(playbacks.flatMap((player) => Object.keys(player.curves)))].map((name) => new Plot(name));
    style();
    seek(start);
    requestAnimationFrame(tick);
    play(true);
  }

  // For tests and for pages around this one: where the camera is [m], world axes.
  function view() {
    const { clientWidth: width, clientHeight: height } = element("picture");
    return { eye: camera.position.toArray(), target: viewer.controls.target.toArray(), fov: camera.fov, width, height, time, radius };
  }
  return { open, seek, play, view, get viewer() { return viewer; } };
})();
